"""What a client keeps and shows at the end of a run: report.json beside its personal model, and a table."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fkd_client.site import Site
from fkd_client.stopwatch import Stopwatch
from fkd_common.artifacts import write_atomically
from fkd_common.ledger import ByteCount, Ledger
from fkd_common.privacy_accounting import PrivacySpent

Report = dict[str, Any]


@dataclass(frozen=True)
class PersonalScores:
    """What is known of a site's own model."""

    chosen: str | None = None
    """The candidate that is kept."""
    validation_accuracy: Mapping[str, float] = field(default_factory=dict)
    """On D_val, by candidate."""
    test_accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """On a test shard, by candidate: "full" and "matched"."""


def build_report(
    run_id: str,
    site: Site,
    parts: tuple[int, int],
    class_counts: NDArray[np.int64],
    personal: PersonalScores,
    stopwatch: Stopwatch,
    ledger: Ledger,
    *,
    teacher: Mapping[str, object] | None = None,
    privacy: PrivacySpent | None = None,
) -> Report:
    """Everything a site may want to know about its part in a run; stays on the site.

    Args:
        run_id: The run.
        site: What the site brought.
        parts: Samples of the training part and of D_val.
        class_counts: (C,) of the training part.
        personal: Its own model.
        stopwatch: What its phases took.
        ledger: What it sent and received.
        teacher: How good FKD-RTM's teacher is.
        privacy: What the site's noised uploads may have told; None in a run without noise.
    """
    spent = None if privacy is None else {**privacy.as_json(), "sentence": privacy.sentence()}
    return {
        "run_id": run_id,
        "client": site.name,
        "samples": {"train": parts[0], "validation": parts[1]},
        "class_counts": class_counts.tolist(),
        "bad_images": [str(bad) for bad in site.shard.bad],
        "teacher": teacher,
        "personal": {
            "chosen": personal.chosen,
            "validation_accuracy": dict(personal.validation_accuracy),
            "test_accuracy": {name: dict(scores) for name, scores in personal.test_accuracy.items()},
        },
        "privacy": spent,
        "seconds": _rounded(stopwatch.seconds),
        "cpu_seconds": _rounded({**stopwatch.cpu_seconds, "process": time.process_time()}),
        "bytes": {
            "total": asdict(ledger.total()),
            "by_phase": {phase: asdict(count) for phase, count in ledger.by_phase().items()},
        },
    }


def write_report(folder: Path, report: Report, ledger: Ledger) -> None:
    """Write report.json and ledger.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "ledger.csv", ledger.to_csv().encode())
    # Not-a-number (an empty validation split) is not JSON.
    text = json.dumps(json.loads(json.dumps(report), parse_constant=lambda name: None), indent=2)
    write_atomically(folder / "report.json", text.encode())


def print_report(report: Report, ledger: Ledger) -> None:
    """Show accuracies and bytes by phase."""
    console = Console()
    chosen = report["personal"]["chosen"]
    validation = report["personal"]["validation_accuracy"]
    tested = report["personal"]["test_accuracy"]
    if validation or tested:
        if report["teacher"] is not None:
            validation = {**validation, "teacher": report["teacher"]["val_accuracy"]}
        columns = ("model", "validation", *(("test", "client-matched test") if tested else ()))
        table = Table(*columns, title=f"{report['client']}: accuracy")
        for name in {**validation, **tested}:
            scores = tested.get(name, {})
            cells = [validation.get(name), *((scores.get("full"), scores.get("matched")) if tested else ())]
            label = f"{name} (kept)" if name == chosen else name
            table.add_row(label, *("" if cell is None or cell != cell else f"{cell:.1%}" for cell in cells))
        console.print(table)
    table = Table("phase", "payload up", "payload down", "message up", "message down", "calls")
    table.title = f"{report['client']}: bytes by phase"
    for column in table.columns[1:]:
        column.justify = "right"
    for phase, count in ledger.by_phase().items():
        table.add_row(phase, *_cells(count))
    table.add_section()
    table.add_row("total", *_cells(ledger.total()))
    console.print(table)
    if report["privacy"] is not None:
        console.print(
            f"{report['client']}: differential privacy: {report['privacy']['sentence']}", highlight=False
        )


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {phase: round(value, 3) for phase, value in seconds.items()}


def _cells(count: ByteCount) -> list[str]:
    counts = (count.payload_up, count.payload_down, count.message_up, count.message_down, count.calls)
    return [f"{value:,}" for value in counts]
