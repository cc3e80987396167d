"""What secure sums cost on the wire: formulas, as the ledger counts them."""

from __future__ import annotations

from pathlib import Path

from fkd_common.method.student_layout import student_layout

from .secure_sites import work
from .test_secure_run import start


def test_a_client_sends_eight_bytes_per_value_and_a_little_per_peer(tmp_path: Path) -> None:
    """K = 3: keys 96, shares 60·(K-1), masked 8 per value and the weight, unmask 16·K; down 96·K and 60·(K-1)."""
    run, sites = start(tmp_path, secure_aggregation=True)
    work(run, sites)
    config, p = run.method.config, run.method.num_moment_features
    layout = student_layout(3, config.hidden, 2, config.norm)
    values = sum(spec.num_bytes // 4 for spec in layout.values() if spec.dtype == "float32")
    for name in sites:
        rows = {key.phase: n for key, n in run.service.ledger.rows() if key.client == name and key.round}
        assert rows["student_keys"].payload_up == 96
        assert (rows["student_shares"].payload_up, rows["student_shares"].payload_down) == (2 * 60, 3 * 96)
        assert (rows["student"].payload_up, rows["student"].payload_down) == (8 * (values + 1), 2 * 60)
        assert rows["student_unmask"].payload_up == 3 * 16
        assert rows["moments"].payload_up == 8 * (p * (p + 1) // 2 + 2 * p)
