"""Every alert fires when it should, and does not when it should not, as Prometheus itself evaluates it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.tools import require_tool

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yaml"
NAMES = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]

AT = '{instance="hub:50053",job="fkd"}'
RUNNING = {'fkd_run_state{instance="hub:50053",job="fkd",state="running"}': "1x200"}
GATHERING = {'fkd_run_state{instance="hub:50053",job="fkd",state="running"}': "0x200"}
REFUSED = 'fkd_rejected_total{instance="hub:50053",job="fkd",reason="%s"}'
CLIENT = 'fkd_client_up{instance="hub:50053",job="fkd",client="%s"}'
ONE_OF_TWO = {CLIENT % "a": "1x20", CLIENT % "b": "0x20"}
BOTH = {CLIENT % "a": "1x20", CLIENT % "b": "1x20"}
SLOW = 'fkd_rpc_seconds_bucket{instance="hub:50053",job="fkd",method="PutChunk",code="OK",le="%s"}'


def of(**values: str) -> dict[str, str]:
    """Series of the coordinator, without other labels; names without their prefix."""
    return {f"fkd_{name}{AT}": samples for name, samples in values.items()}


@dataclass(frozen=True)
class Case:
    """Series of one sample a minute, and whether the alert fires at some minute."""

    alert: str
    fires: bool
    minute: int
    series: dict[str, str]


CASES = [
    Case("FkdCoordinatorDown", True, 3, {f"up{AT}": "0x10"}),
    Case("FkdCoordinatorDown", False, 3, {f"up{AT}": "0 0 1 0 0"}),
    Case("FkdCoordinatorDown", False, 3, {'up{job="node"}': "0x10", f"up{AT}": "1x10"}),
    # A target that has vanished, as a pod does that was deleted, has no samples; the last one counts for five minutes.
    Case("FkdCoordinatorDown", True, 9, {'up{job="node"}': "1x10", f"up{AT}": "1 1 _x10"}),
    Case("FkdCoordinatorDown", True, 3, {'up{job="node"}': "1x10"}),
    Case("FkdNotReady", True, 16, of(ready="0x20")),
    Case("FkdNotReady", False, 16, of(ready="0x10 1x10")),
    Case("FkdRunAborted", True, 1, {'fkd_run_state{job="fkd",state="aborted"}': "0 1"}),
    Case("FkdRunAborted", False, 1, {'fkd_run_state{job="fkd",state="completed"}': "0 1"}),
    Case("FkdRunStalled", True, 100, {**of(rounds_done_total="7x200", paused="0x200"), **RUNNING}),
    Case("FkdRunStalled", False, 100, {**of(rounds_done_total="7+0.03x200", paused="0x200"), **RUNNING}),
    Case("FkdRunStalled", False, 100, {**of(rounds_done_total="7x200", paused="1x200"), **RUNNING}),
    Case("FkdRunStalled", False, 100, {**of(rounds_done_total="0x200", paused="0x200"), **GATHERING}),
    Case("FkdWaitingForClients", True, 61, {'fkd_run_state{job="fkd",state="gathering"}': "1x100"}),
    Case("FkdWaitingForClients", False, 61, {'fkd_run_state{job="fkd",state="gathering"}': "1x30 0x70"}),
    Case("FkdClientsMissing", True, 11, {**ONE_OF_TWO, **of(clients_needed="2x20"), **RUNNING}),
    Case("FkdClientsMissing", False, 11, {**BOTH, **of(clients_needed="2x20"), **RUNNING}),
    Case("FkdClientsMissing", False, 11, {**ONE_OF_TWO, **of(clients_needed="2x20"), **GATHERING}),
    Case("FkdClientGone", True, 16, {CLIENT % "a": "0x20", **RUNNING}),
    Case("FkdClientGone", False, 16, {CLIENT % "a": "0x10 1 0x10", **RUNNING}),
    Case("FkdClientGone", False, 16, {CLIENT % "a": "0x20", **GATHERING}),
    Case("FkdDeadlineNear", True, 1, of(phase_answered="1 1", phase_participants="4 4", deadline_seconds="90 30")),
    Case("FkdDeadlineNear", False, 1, of(phase_answered="3 3", phase_participants="4 4", deadline_seconds="90 30")),
    Case("FkdDeadlineNear", False, 1, of(phase_answered="0 0", phase_participants="4 4", deadline_seconds="600 540")),
    Case("FkdDeadlineNear", False, 1, of(phase_answered="0 0", phase_participants="0 0")),
    Case("FkdRejectionsRising", True, 25, {REFUSED % "NO_IDENTITY": "0+30x40"}),
    Case("FkdRejectionsRising", False, 25, {REFUSED % "ROUND_CLOSED": "0+3x40", REFUSED % "BUSY": "0+3x40"}),
    Case("FkdRejectionsRising", False, 25, {REFUSED % "PREPARING": "0+60x40"}),
    Case("FkdDiskRefuses", True, 3, {REFUSED % "STORAGE": "0 0 1 1"}),
    Case("FkdDiskRefuses", False, 3, {REFUSED % "STORAGE": "0 0 0 0", REFUSED % "BUSY": "0 1 2 3"}),
    Case("FkdDiskFilling", True, 6, of(disk_free_bytes="900000000x10")),
    Case("FkdDiskFilling", False, 6, of(disk_free_bytes="20000000000x10")),
    # The evaluation's clock begins at 0.
    Case("FkdCertificateExpiring", True, 61, of(certificate_expiry_timestamp_seconds="1000000x100")),
    Case("FkdCertificateExpiring", False, 61, of(certificate_expiry_timestamp_seconds="2000000x100")),
    Case("FkdAccuracyDrop", True, 20, {'fkd_accuracy{job="fkd",candidate="student"}': "0.8x10 0.6x10"}),
    Case("FkdAccuracyDrop", False, 20, {'fkd_accuracy{job="fkd",candidate="student"}': "0.8x10 0.75x10"}),
    Case("FkdAccuracyDrop", False, 20, {'fkd_accuracy{job="fkd",candidate="student"}': "0.2x10 0.8x10"}),
    Case("FkdAnswersSlowly", True, 30, {SLOW % "2.5": "0x40", SLOW % "10": "0+10x40", SLOW % "+Inf": "0+10x40"}),
    Case("FkdAnswersSlowly", False, 30, {SLOW % "2.5": "0+10x40", SLOW % "10": "0+10x40", SLOW % "+Inf": "0+10x40"}),
    Case("FkdMemoryHigh", True, 6, {f"process_resident_memory_bytes{AT}": "2000000000x10"}),
    Case("FkdMemoryHigh", False, 6, {f"process_resident_memory_bytes{AT}": "200000000x10"}),
    Case("FkdMemoryHigh", False, 6, {'process_resident_memory_bytes{job="node"}': "2000000000x10"}),
    Case("FkdPausedLong", True, 721, of(paused="1x800")),
    Case("FkdPausedLong", False, 721, of(paused="1x600 0x200")),
]  # fmt: skip


def test_the_rules_are_rules() -> None:
    checked = subprocess.run(
        [require_tool("promtool"), "check", "rules", "--lint-fatal", str(RULES)],
        capture_output=True,
        timeout=30,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("alert", NAMES)
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    assert {case.fires for case in CASES if case.alert == alert} == {True, False}


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What promtool says of all cases; a failed one is named."""
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "promql_expr_test": [
                {
                    "expr": _expression(number, case),
                    "eval_time": f"{case.minute}m",
                    "exp_samples": [{"labels": f'{{alertname="{case.alert}"}}', "value": 1}] * case.fires,
                }
            ],
        }
        for number, case in enumerate(CASES)
    ]
    path = tmp_path_factory.mktemp("alerts") / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        [require_tool("promtool"), "test", "rules", str(path)], capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def _expression(number: int, case: Case) -> str:
    """What is there when the alert fires; numbered, as it is all that promtool says of a case that failed."""
    return f"count by (alertname) (ALERTS{{alertname='{case.alert}',alertstate='firing'}}) + 0 * {number}"


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)))
def test_an_alert_fires_when_it_should_and_only_then(number: int, case: Case, verdict: str) -> None:
    assert "Unit Testing" in verdict
    assert f'"{_expression(number, case)}"' not in verdict, verdict


@pytest.mark.parametrize(
    "rule", [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
)
def test_an_alert_says_what_is_wrong_what_it_means_and_where_to_read_on(
    rule: dict[str, dict[str, str]],
) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{str(rule['alert']).lower()}"
