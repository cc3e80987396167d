"""What a client keeps and shows at the end of a run: report.json beside its personal model, and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fkd_client.pipeline import Pipeline
from fkd_client.tasks import TaskRunner
from fkd_common.artifacts import write_atomically
from fkd_common.ledger import ByteCount, Ledger
from fkd_common.privacy_accounting import PrivacySpent

Report = dict[str, Any]


def build_report(
    pipeline: Pipeline,
    runner: TaskRunner,
    ledger: Ledger,
    run_id: str,
    accuracy: Mapping[str, Mapping[str, float]],
) -> Report:
    """Everything a site may want to know about its part in a run; stays on the site."""
    personal = runner.personal
    return {
        "run_id": run_id,
        "client": pipeline.site.name,
        "samples": {"train": pipeline.num_samples, "validation": len(pipeline.y_val)},
        "class_counts": pipeline.class_counts.tolist(),
        "bad_images": [str(bad) for bad in pipeline.site.shard.bad],
        "teacher": {**asdict(pipeline.teacher.report), "reliability": pipeline.teacher.reliability},
        "personal": {
            "chosen": personal.chosen if personal else None,
            "validation_accuracy": dict(personal.val_accuracy) if personal else {},
            "test_accuracy": {name: dict(scores) for name, scores in accuracy.items()},
        },
        "privacy": _privacy(pipeline),
        "seconds": {phase: round(seconds, 3) for phase, seconds in pipeline.seconds.items()},
        "bytes": {
            "total": asdict(ledger.total()),
            "by_phase": {phase: asdict(count) for phase, count in ledger.by_phase().items()},
        },
    }


def _privacy(pipeline: Pipeline) -> dict[str, object] | None:
    """What the site's noised uploads may have told, in numbers and as a sentence; None in a run without noise."""
    spent = PrivacySpent.of(pipeline.config, pipeline.releases.releases)
    return {**spent.as_json(), "sentence": spent.sentence()} if spent is not None else None


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


def _cells(count: ByteCount) -> list[str]:
    counts = (count.payload_up, count.payload_down, count.message_up, count.message_down, count.calls)
    return [f"{value:,}" for value in counts]
