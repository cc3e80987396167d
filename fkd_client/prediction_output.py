"""Predictions as a table, JSON lines or CSV on standard output; predicts nothing."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fkd_common.csv_text import csv_cell
from fkd_common.printable import printable

_PLAIN_WIDTH = 240
"""Of a table that does not go to a terminal."""


@dataclass(frozen=True)
class Prediction:
    """What a model says about one image file."""

    image: str
    ranking: tuple[tuple[str, float], ...]
    """Classes and their probabilities, the likeliest first."""


class Output(Protocol):
    """Takes predictions as they are made."""

    def add(self, predictions: Sequence[Prediction]) -> None:
        """Some more."""

    def end(self) -> None:
        """There are no more."""


def output_for(as_json: bool, as_csv: bool, top: int) -> Output:
    """The form that was asked for: JSON lines, CSV, or else a table."""
    if as_json:
        return _JsonLines()
    return _Csv(top) if as_csv else _Table()


class _JsonLines:
    def add(self, predictions: Sequence[Prediction]) -> None:
        for prediction in predictions:
            top = [{"class": name, "probability": round(share, 6)} for name, share in prediction.ranking]
            print(json.dumps({"image": prediction.image, **top[0], "top": top}))
        sys.stdout.flush()

    def end(self) -> None:
        """Every line has been printed."""


class _Csv:
    def __init__(self, top: int) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        places = ["", *(f"_{place}" for place in range(2, top + 1))]
        self._heading: list[str] | None = [
            "image", *(f"{what}{place}" for place in places for what in ("class", "probability"))
        ]  # fmt: skip

    def add(self, predictions: Sequence[Prediction]) -> None:
        if self._heading is not None and predictions:
            width = 1 + 2 * len(predictions[0].ranking)  # a model may have fewer classes than were asked for
            self._writer.writerow(self._heading[:width])
            self._heading = None
        for prediction in predictions:
            cells = [cell for name, share in prediction.ranking for cell in (_cell(name), f"{share:.6f}")]
            self._writer.writerow([_cell(prediction.image), *cells])
        sys.stdout.flush()

    def end(self) -> None:
        """Every line has been written."""


class _Table:
    def __init__(self) -> None:
        self._rows: list[Prediction] = []

    def add(self, predictions: Sequence[Prediction]) -> None:
        self._rows += predictions

    def end(self) -> None:
        if not self._rows:
            return
        further = any(len(row.ranking) > 1 for row in self._rows)
        table = Table("image", "class", "probability", *(["then"] if further else []))
        table.columns[2].justify = "right"
        for row in self._rows:
            (name, share), *others = row.ranking
            cells = [Text(printable(row.image)), Text(printable(name)), Text(f"{share:.1%}")]
            if further:
                rest = ", ".join(f"{other} {chance:.1%}" for other, chance in others)
                cells.append(Text(printable(rest)))
            table.add_row(*cells)
        Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH).print(table)


def _cell(name: str) -> str:
    """A name as text, whatever its bytes, that neither a terminal nor a spreadsheet would obey."""
    return csv_cell(printable(name.encode(errors="backslashreplace").decode()))
