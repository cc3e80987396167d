"""Finished cells to files: table.md, table.tex, figures/*.svg and report.html, which needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fkd_bench.compare.answers import RunSettings, answers
from fkd_bench.compare.illustrations import illustrations
from fkd_bench.compare.markup import latex, markdown
from fkd_bench.compare.measures import Record, number
from fkd_bench.compare.plot_svg import within_page
from fkd_bench.compare.survey import Panel, Survey, error_text, setting_text
from fkd_bench.compare.tables import Table, measure_table, traffic_table
from fkd_common.artifacts import write_atomically
from fkd_common.errors import UsageError

TABLE_MD, TABLE_TEX, REPORT, FIGURES = "table.md", "table.tex", "report.html", "figures"
CALIBRATION = {
    "Calibration of the global model": ("ece", "nll"),
    "Calibration of the teachers": (
        "teacher_ece_before",
        "teacher_ece_after",
        "teacher_nll_before",
        "teacher_nll_after",
    ),
}
SHOWN_OF_A_HASH = 12
NO_TABLE = "No run has any of the measures that this experiment asks for."


def write_report(records: Sequence[Record], experiment: Mapping[str, Any], folder: Path) -> None:
    """Write an experiment's tables, plots and report; what an earlier call wrote there is replaced.

    Args:
        records: Finished cells, one per line of results.jsonl; of several with one id the last good one counts.
        experiment: ``name``, ``title``, ``question``, ``columns`` (the axis whose values are columns, or empty),
            ``metrics`` (names of :data:`fkd_bench.compare.measures.MEASURES` or of a cell's accuracies), ``minutes``
            (what it is known to take) and ``command``; optionally ``labels``, ``axes`` (values by name) and
            ``seeds``, which say in which order cells are shown, and which of them are missing.
        folder: Where to; made if need be.

    Raises:
        UsageError: There is no record.
    """
    if not records:
        raise UsageError("no cell of this experiment has been run yet: run it before asking for its report")
    grid = Survey.of(records, experiment)
    topics = illustrations(grid, experiment)
    survey = grid.with_columns_as_rows()
    tables = _Tables.of(survey, list(experiment.get("metrics") or ["global"]))
    figures = folder / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    files = {f"{figure.name}.svg": figure.file for topic in topics for figure in topic.figures}
    for stale in figures.glob("*.svg"):
        if stale.name not in files:
            stale.unlink()
    for name, file in files.items():
        _write(figures / name, file)
    title = str(experiment.get("title") or experiment["name"])
    _write(folder / TABLE_MD, "\n".join(map(markdown, tables.all)) or f"{NO_TABLE}\n")
    _write(folder / TABLE_TEX, "% needs \\usepackage{booktabs}\n" + "\n".join(map(latex, tables.all)))
    page = _environment().get_template("report.html.j2")
    _write(
        folder / REPORT,
        page.render(
            title=title,
            experiment=experiment,
            grid=grid,
            survey=survey,
            answers=answers(survey, list(experiment.get("metrics") or ["global"])),
            tables=tables,
            no_table=NO_TABLE,
            topics=topics,
            within_page=lambda figure: Markup(within_page(figure.file, figure.name, figure.summary)),  # noqa: S704
            settings=RunSettings.of(survey),
            cells=_cells(survey),
            failures=[(*_place(survey, record), error_text(record)) for record in survey.failed],
            gaps=_gaps(survey),
            excluded=_excluded(survey),
            cost=_cost(survey),
            versions=sorted({str(record["git"]) for record in _finished(survey) if record.get("git")}),
        ),
    )


@dataclass(frozen=True)
class _Tables:
    main: list[Table]
    traffic: list[Table]
    calibration: list[Table]

    @classmethod
    def of(cls, survey: Survey, metrics: Sequence[str]) -> _Tables:
        return cls(
            [
                table
                for setting in survey.settings
                if (table := measure_table(survey, setting, metrics, "Results"))
            ],
            [table for panel in survey.panels if (table := traffic_table(survey, panel))],
            [
                table
                for setting in survey.settings
                for subject, names in CALIBRATION.items()
                if (table := measure_table(survey, setting, names, subject, all_rows=False))
            ],
        )

    @property
    def all(self) -> list[Table]:
        return [*self.main, *self.traffic, *self.calibration]


@dataclass(frozen=True)
class _Cell:
    """A line of the list of cells."""

    label: str
    where: str
    seed: int
    scores: tuple[str, str]
    seconds: str
    hashes: tuple[str, ...]


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fkd_bench.compare", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())


def _finished(survey: Survey) -> list[Record]:
    return [record for panel in survey.panels for record in panel.records]


def _cells(survey: Survey) -> list[_Cell]:
    return [
        _Cell(
            label,
            panel.title,
            record["seed"],
            (_percent(record, "global"), _percent(record, "personal_matched")),
            _rounded(number(record, "seconds", "wall")),
            tuple(
                str(record.get(name) or "–")[:SHOWN_OF_A_HASH]
                for name in ("cell", "config_hash", "partition_hash", "model_hash")
            ),
        )
        for panel in survey.panels
        for label, records in panel.by_label.items()
        for record in records
    ]


def _percent(record: Record, name: str) -> str:
    value = number(record, "accuracy", name)
    return "–" if value is None else f"{100 * value:.2f}"


def _rounded(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _place(survey: Survey, record: Record) -> tuple[str, str, int]:
    varied = record.get("varied") or {}
    where = setting_text(tuple((name, str(varied[name])) for name in survey.varying if name in varied))
    return record["label"], where, record["seed"]


def _gaps(survey: Survey) -> list[str]:
    """Cells that were never run, a phrase for every row and column that lacks some."""
    return [
        f"{label}{', ' + panel.title if panel.title else ''}: {gap}"
        for panel in survey.panels
        for label in survey.labels
        if (gap := survey.absent(panel, label))
    ]


def _excluded(survey: Survey) -> list[tuple[str, str, str]]:
    """Sites whose uploads did not count in some run: label, where, names with how often."""
    return [
        (label, panel.title, names)
        for panel in survey.panels
        for label in survey.labels
        if (names := _excluded_names(panel, label))
    ]


def _excluded_names(panel: Panel, label: str) -> str:
    runs = panel.by_label[label]
    names = sorted({name for record in runs for name in record.get("excluded") or ()})
    return ", ".join(
        f"{name} ({sum(name in (record.get('excluded') or ()) for record in runs)} of {len(runs)} runs)"
        for name in names
    )


def _cost(survey: Survey) -> Mapping[str, str]:
    """Minutes of all finished cells together."""
    return {
        kind: f"{sum(number(record, 'seconds', kind) or 0.0 for record in _finished(survey)) / 60:,.1f}"
        for kind in ("wall", "cpu")
    }
