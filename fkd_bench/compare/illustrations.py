"""Which plots an experiment gets, in which order and with which words; draws nothing itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from fkd_bench.compare import plots, site_plots
from fkd_bench.compare.measures import Record, lacks_global_model, measure, value_number
from fkd_bench.compare.plot_style import LacksData, Look
from fkd_bench.compare.plot_svg import svg
from fkd_bench.compare.survey import Panel, Survey, setting_text

MOST_PANELS = 6
"""Settings that get plots of their own; the tables have all."""
MOST_AXIS_PLOTS = 8


@dataclass(frozen=True)
class Illustration:
    """One plot."""

    name: str
    """Of its file, without ending; unique within the report."""
    summary: str
    file: str
    """SVG."""


@dataclass
class Topic:
    """Plots of one kind."""

    name: str
    heading: str
    caption: str
    figures: list[Illustration] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What could not be drawn, or was not, and why."""

    def add(self, title: str, draw: Callable[[], Figure]) -> None:
        """Draw one more, or remember why there is none."""
        try:
            file = svg(draw())
        except LacksData as reason:
            if str(reason) not in self.remarks:
                self.remarks.append(str(reason))
            return
        ending = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.")[:40]
        number = f"{len(self.figures) + 1}-" if ending else ""
        name = f"{self.name}-{number}{ending}".rstrip("-.")
        self.figures.append(Illustration(name, f"{self.heading}{': ' if title else ''}{title}", file))


_BY_PANEL: tuple[tuple[str, str, str, Callable[[Sequence[Record], Look, str], Figure]], ...] = (
    (
        "accuracy-by-round",
        "Accuracy by round",
        "The global model that a site would use after each round, the last one published, on the whole test set: mean "
        "over seeds (band: one standard deviation of the emphasised method). A single mark is a method that publishes "
        "once; † is the mean of clients' models. "
        "Beginnings far below the final accuracies are cut off.",
        plots.accuracy_by_round,
    ),
    (
        "accuracy-by-bytes",
        "Accuracy by bytes",
        "The same, by the payload that a client has sent and received so far (logarithmic). Further left is "
        "cheaper. Methods that exchange nothing are not shown.",
        plots.accuracy_by_bytes,
    ),
    (
        "accuracy-by-site",
        "Personal accuracy of every site",
        "Each dot is one site of one seed: its personal model on test data with its own shares of classes.",
        site_plots.accuracy_by_site,
    ),
    (
        "recall-by-class",
        "Recall by class",
        "Share of each class that the global model recognises, mean over seeds; the emphasised method and the best "
        "others in colour.",
        site_plots.recall_by_class,
    ),
    (
        "weights",
        "Weights of the sites",
        "α_k of the last average, first seed, beside what the number of samples alone would give. A site without "
        "a dot was not in that average.",
        site_plots.weights,
    ),
    (
        "reliability",
        "Reliability of the global model",
        "Accuracy where the model is so confident, seeds pooled, with the expected calibration error; below the dashed "
        "line, where both are equal, it is too confident. Bins with less than 0.5 % of the predictions are left out.",
        site_plots.reliability,
    ),
    (
        "seconds-by-phase",
        "Time by phase",
        "Seconds a run spends in each phase, as the run itself counted them.",
        plots.seconds_by_phase,
    ),
)


def illustrations(survey: Survey, experiment: Mapping[str, Any]) -> list[Topic]:
    """All plots of an experiment.

    Args:
        survey: Its cells.
        experiment: As :func:`fkd_bench.compare.report.write_report` takes it.
    """
    topics = [_by_axis(survey, experiment), _partitions(survey)]
    rows = survey.with_columns_as_rows()
    look = _look(rows)
    panels = [panel for panel in rows.panels if panel.records]
    for name, heading, caption, draw in _BY_PANEL:
        topic = Topic(name, heading, caption)
        for panel in panels[:MOST_PANELS]:
            _add_panel(topic, draw, panel, look)
        if len(panels) > MOST_PANELS and topic.figures:
            topic.remarks.append(
                f"{len(panels) - MOST_PANELS} more settings are in the tables only, to keep this page small."
            )
        topics.append(topic)
    return [topic for topic in topics if topic.figures or topic.remarks]


def _add_panel(
    topic: Topic, draw: Callable[[Sequence[Record], Look, str], Figure], panel: Panel, look: Look
) -> None:
    topic.add(panel.title, lambda: draw(panel.records, look, panel.title))


def _look(survey: Survey) -> Look:
    clients_only = {
        record["label"] for panel in survey.panels for record in panel.records if lacks_global_model(record)
    }
    return Look.of(survey, frozenset(clients_only))


def _by_axis(survey: Survey, experiment: Mapping[str, Any]) -> Topic:
    topic = Topic(
        "accuracy-by-axis",
        "Accuracy by what was varied",
        "Mean over seeds; bands are one standard deviation. † is the mean of clients' models.",
    )
    look = _look(survey)
    jobs = [
        (axis, name, where, records)
        for axis in survey.varying
        if _is_scale(survey.varying[axis])
        for where, records in _groups(survey, axis)
        for name in experiment.get("metrics") or ["global"]
        if measure(name).better and any(measure(name).read(record) is not None for record in records)
    ]
    for axis, name, where, records in jobs[:MOST_AXIS_PLOTS]:
        _add_axis(topic, records, look, (axis, name, where))
    if len(jobs) > MOST_AXIS_PLOTS:
        topic.remarks.append(f"{len(jobs) - MOST_AXIS_PLOTS} more plots of this kind are left out.")
    return topic


def _add_axis(topic: Topic, records: Sequence[Record], look: Look, what: tuple[str, str, str]) -> None:
    axis, name, where = what
    title = f"{axis}{', ' + where if where else ''}, {measure(name).heading.removesuffix(', %')}"
    topic.add(title, lambda: plots.accuracy_by_axis(records, look, axis, name, where))


def _is_scale(values: Sequence[str]) -> bool:
    """Numbers, or three and more values of the form ``name:number`` with one name."""
    if any(value_number(value) is None for value in values):
        return False
    names = {value.rpartition(":")[0] for value in values}
    return len(names) == 1 and len(values) >= (2 if names == {""} else 3)


def _groups(survey: Survey, axis: str) -> Iterator[tuple[str, list[Record]]]:
    """Cells that differ in this axis only, and where on the other axes they are."""
    groups: dict[str, list[Record]] = {}
    for panel in survey.panels:
        column = ((survey.column_axis, panel.column),) if survey.column_axis else ()
        others = tuple(pair for pair in (*panel.setting, *column) if pair[0] != axis)
        groups.setdefault(setting_text(others), []).extend(panel.records)
    yield from ((where, records) for where, records in groups.items() if records)


def _partitions(survey: Survey) -> Topic:
    topic = Topic(
        "partition",
        "Who has which classes",
        "Training samples by class and site, first seed; darker is more.",
    )
    seen: dict[str, Record] = {}
    for record in (one for panel in survey.panels for one in panel.records if one.get("class_counts")):
        title = f"{record.get('dataset')}, {record.get('partition')}, {record.get('clients')} sites"
        if title not in seen or record["seed"] < seen[title]["seed"]:
            seen[title] = record
    for title, record in list(seen.items())[:MOST_PANELS]:
        _add_partition(topic, title, record)
    if len(seen) > MOST_PANELS:
        topic.remarks.append(f"{len(seen) - MOST_PANELS} more partitions are not shown.")
    return topic


def _add_partition(topic: Topic, title: str, record: Record) -> None:
    topic.add(title, lambda: site_plots.partition([record], title))
