"""From an experiment to its cells: every method, on every value of every axis, with every seed; runs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from fkd_bench.compare.catalogue import title_of
from fkd_bench.compare.cell import Cell, Division
from fkd_bench.compare.experiment import (
    DATA_AXIS,
    DivisionSpec,
    Experiment,
    MethodSpec,
    check_count,
    check_numbers,
    sentence_of,
)
from fkd_bench.compare.source_files import expanded, located_extractor, located_source
from fkd_common.choices import NETWORK_CODECS
from fkd_common.errors import DataError, UsageError
from fkd_common.method_registry import codes_networks

Located = tuple[str, str, str, str]
"""A data set's source and hash, its extractor and hash."""


def cells_of(
    experiment: Experiment, variables: Mapping[str, str] | None, seeds: Sequence[int] | None = None
) -> list[Cell]:
    """All cells of an experiment, seed by seed.

    Args:
        experiment: What spans them.
        variables: What ``${NAME}`` stands for; None looks for no file, and the cells are to be counted, not run.
        seeds: Instead of the experiment's.

    Raises:
        UsageError: A variable is not set, or a cell's configuration cannot be.
        DataError: Data or an extractor do not lie where the experiment says.
    """
    spanned = experiment.spanned
    located = {
        name: _located(experiment, name, variables)
        for name in spanned.get(DATA_AXIS, list(experiment.data)[:1])
    }
    first: dict[str, Cell] = {}
    try:
        check_count(experiment.count(seeds))
        labels = _labels(experiment)
        for seed in experiment.seeds if seeds is None else seeds:
            for values in itertools.product(*spanned.values()):
                place = dict(zip(spanned, values, strict=True))
                for method, label in zip(experiment.methods, labels, strict=True):
                    cell = _cell(experiment, method, label, place, seed, located)
                    if (other := first.setdefault(cell.id, cell)) is not cell:
                        raise UsageError(f"({other}) and ({cell}) are one and the same run: leave one out")
    except UsageError as error:
        raise UsageError(f"experiment {experiment.where}: {error}") from error
    return list(first.values())


def _labels(experiment: Experiment) -> list[str]:
    """The name in tables of every method of an experiment."""
    labels = [method.label or title_of(method.method) for method in experiment.methods]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"methods: {label} is there twice: give one of them another label")
    return labels


def reported(experiment: Experiment, cells: Sequence[Cell], command: str) -> dict[str, Any]:
    """What tables and the report are told of an experiment, in the order that they show.

    Args:
        experiment: The experiment.
        cells: Its cells.
        command: What a reader types to make the same.
    """
    return {
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "columns": experiment.columns,
        "metrics": list(experiment.metrics),
        "minutes": experiment.minutes,
        "command": command,
        "labels": _distinct(cell.label for cell in cells),
        "axes": {axis: _distinct(cell.varied[axis] for cell in cells) for axis in experiment.spanned},
        "seeds": list(experiment.seeds),
    }


def _cell(
    experiment: Experiment,
    method: MethodSpec,
    label: str,
    place: Mapping[str, Any],
    seed: int,
    located: Mapping[str, Located],
) -> Cell:
    dataset = str(place.get(DATA_AXIS, next(iter(located))))
    of_data = experiment.data[dataset].model_dump(exclude={"source", "extractor"}, exclude_none=True)
    asked = experiment.model_dump(include=set(DivisionSpec.model_fields)) | of_data
    asked |= {name: value for name, value in place.items() if name in DivisionSpec.model_fields}
    keys = {name: value for name, value in place.items() if name not in asked and name != DATA_AXIS}
    source, source_sha256, extractor, extractor_sha256 = located[dataset]
    try:
        spec = DivisionSpec.model_validate(asked)
        check_numbers(asked, spec)
        division = spec.model_dump()
        cell = Cell(
            experiment=experiment.name,
            label=label,
            method=method.method,
            dataset=dataset,
            division=Division(source, source_sha256, extractor, extractor_sha256, seed, **division),
            options=method.options,
            overrides={**_common(experiment, method.method), **method.settings, **keys},
        )
        check_numbers(cell.overrides, cell.config)
        plain = {**cell.config.model_dump(mode="json"), **division, DATA_AXIS: dataset}
    except ValidationError as error:
        raise UsageError(f"{label}: {sentence_of(error)}") from error
    except UsageError as error:
        raise UsageError(f"{label}: {error}") from error
    return replace(cell, varied={axis: plain[axis] for axis in place})


def _common(experiment: Experiment, method: str) -> Mapping[str, Any]:
    """Keys for every cell, less codecs where the method has nothing that they could pack."""
    common = experiment.common
    if not common.keys() & set(NETWORK_CODECS) or codes_networks(method):
        return common
    return {name: value for name, value in common.items() if name not in NETWORK_CODECS}


def _located(experiment: Experiment, name: str, variables: Mapping[str, str] | None) -> Located:
    spec = experiment.data[name]
    if variables is None:
        return spec.source, name, spec.extractor, name
    try:
        source, extractor = expanded(spec.source, variables), expanded(spec.extractor, variables)
        return (*located_source(source), *located_extractor(extractor))
    except (UsageError, DataError) as error:
        raise type(error)(f"experiment {experiment.where}: data set {name}: {error}") from error


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order they come; lists are values too."""
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept
