"""A run's result for a person: accuracy, bytes and seconds as tables on standard output; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
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
    for phase, seconds in summary["seconds"]["phases"].items():
        table.add_row(phase, f"{seconds:.1f}")
    table.add_section()
    table.add_row("since this start", f"{summary['seconds']['total']:.1f}")
    console.print(align_right(table))


def bytes_table(count: Mapping[str, Any]) -> Table:
    """Bytes per client by phase, from the "bytes" of a summary."""
    table = Table(
        "phase", "payload up", "payload down", "message up", "message down", title="bytes per client"
    )
    for phase, part in count["by_phase"].items():
        table.add_row(phase, *_byte_cells(part))
    table.add_section()
    table.add_row("total", *_byte_cells(count))
    return align_right(table)


def align_right(table: Table) -> Table:
    """Numbers, in all columns but the first, aligned."""
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def percent(value: float | None) -> str:
    """A share of 0...1."""
    return "–" if value is None else f"{value:.2%}"


def _byte_cells(count: Mapping[str, Any]) -> list[str]:
    return [f"{count[kind][way]:,}" for kind in ("payload", "message") for way in ("up", "down")]
