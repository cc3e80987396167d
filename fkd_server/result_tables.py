"""A run's result for a person: accuracy, bytes and seconds as tables on standard output; computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fkd_server.chronicle import WrittenModel


def print_summary(summary: Mapping[str, Any], model: WrittenModel | None) -> None:
    """A finished run: what was published and how good it is, then what it cost.

    Args:
        summary: As in ``summary.json``.
        model: The model it left, if any.
    """
    console = Console()
    left = "no model" if model is None else f"model after round {model.round}, {model.published} published"
    console.print(f"run {summary['run_id']} {summary['state']}: {left}", soft_wrap=True, highlight=False)
    table = Table("candidate", "test set", title="accuracy")
    scores = {name: value for name, value in summary["accuracy"].items() if isinstance(value, float)}
    for name, value in scores.items():
        table.add_row(name, percent(value))
    if scores:
        console.print(align_right(table))
    console.print(bytes_table(summary["bytes"]))
    table = Table("phase", "seconds", title="time, all rounds")
    seconds = summary["seconds"]["phases"]
    for row, phases in _rows(seconds).items():
        table.add_row(row, f"{sum(seconds[phase] for phase in phases):.1f}")
    table.add_section()
    table.add_row("since this start", f"{summary['seconds']['total']:.1f}")
    console.print(align_right(table))


def bytes_table(count: Mapping[str, Any]) -> Table:
    """Bytes per client by phase, from the "bytes" of a summary."""
    table = Table(
        "phase", "payload up", "payload down", "message up", "message down", title="bytes per client"
    )
    by_phase = count["by_phase"]
    for row, phases in _rows(by_phase).items():
        table.add_row(row, *_byte_cells([by_phase[phase] for phase in phases]))
    table.add_section()
    table.add_row("total", *_byte_cells([count]))
    return align_right(table)


def align_right(table: Table) -> Table:
    """Numbers, in all columns but the first, aligned."""
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def percent(value: float | None) -> str:
    """A share of 0...1."""
    return "–" if value is None else f"{value:.2%}"


def _rows(phases: Iterable[str]) -> dict[str, list[str]]:
    """Phases by the row that tells of them: one for all steps of a refinement."""
    rows: dict[str, list[str]] = {}
    for phase in phases:
        rows.setdefault("refine" if phase.startswith("refine_") else phase, []).append(phase)
    return rows


def _byte_cells(counts: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [(kind, way) for kind in ("payload", "message") for way in ("up", "down")]
    return [f"{sum(count[kind][way] for count in counts):,}" for kind, way in cells]
