"""An experiment's file: what it may say, checked before anything runs; expands to nothing here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fkd_bench.compare.catalogue import ALL, ALL_METHODS, PRESETS, TITLES
from fkd_bench.compare.measures import MEASURES
from fkd_common.advice import did_you_mean
from fkd_common.config import FKD_RTM, RunConfig
from fkd_common.errors import UsageError
from fkd_common.method_registry import known_methods
from fkd_shards.partitions import Partition

DATA_AXIS = "data"
_SAID_ELSEWHERE = {
    "seed": "give `seeds: [...]`",
    "method": "list it under `methods`",
    "options": "give them with the method",
}
"""Keys of the run configuration that an experiment says in its own way."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DataSpec(_Part):
    """One data set."""

    source: str
    """Source of `fkd-shards create`; ``${NAME}`` is an environment variable."""
    extractor: str = "resnet18"
    """`resnet18`, `pretrain` or a .safetensors file with its JSON."""
    anchors: int | None = None
    """Instead of the experiment's; so are the next two."""
    public: int | None = None
    limit: int | None = None


class MethodSpec(_Part):
    """One row of the tables."""

    method: str = FKD_RTM
    label: str = ""
    """As tables show it (default: the method's title)."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Hyper-parameters of another method than FKD-RTM."""
    preset: str = ""
    """A named configuration of FKD-RTM."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run configuration, for this row only."""

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.label or TITLES.get(self.method, self.method)

    @property
    def settings(self) -> dict[str, Any]:
        """Keys of the run configuration that it sets."""
        return {**PRESETS.get(self.preset, {}), **self.config}


class DivisionSpec(_Part):
    """How data are divided among clients."""

    partition: str = "dirichlet:0.1"
    clients: int = Field(10, ge=1)
    anchors: int = Field(500, ge=2)
    """Unlabelled images set aside."""
    public: int = Field(0, ge=0)
    """Labelled images set aside, for the extractor `pretrain`."""
    limit: int | None = Field(None, ge=1)
    """Use at most this many training and this many test images."""
    few_shot: int | None = Field(None, ge=1)
    """Most samples of a class that a client keeps."""
    flipped_clients: float = Field(0.0, ge=0, le=1)
    """Share of the clients whose every label c is made C - 1 - c."""
    label_noise: float = Field(0.0, ge=0, le=1)
    """Share of every client's labels that are made others."""

    @field_validator("partition")
    @classmethod
    def _spelled_one_way(cls, partition: str) -> str:
        try:
            return str(Partition.parse(partition))
        except UsageError as error:
            raise ValueError(str(error)) from error


class Experiment(DivisionSpec):
    """A grid of cells: every method, on every value of every axis, with every seed."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Of its file, without the ending."""
    title: str
    question: str = ""
    """What it answers."""
    data: dict[str, DataSpec] = Field(min_length=1)
    """By name; more than one is an axis."""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    common: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run configuration, for every cell."""
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    """Values of whatever varies: data, how they are divided, or a key of the run configuration."""
    methods: list[MethodSpec] = Field(min_length=1)
    columns: str = ""
    """The axis whose values are the columns of tables."""
    metrics: tuple[str, ...] = ("global", "personal_matched")
    """What tables show."""
    minutes: float | None = Field(None, gt=0)
    """Measured on 2 cores."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            UsageError: It cannot be read, or says something that cannot be; one sentence.
        """
        try:
            content = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"experiment {path} cannot be read: {error}") from error
        return cls.parse(content, path.stem, str(path))

    @classmethod
    def parse(cls, content: str, name: str, where: str) -> Self:
        """An experiment from the text of its file.

        Args:
            content: YAML.
            name: The file's name without its ending.
            where: The file, for messages.

        Raises:
            UsageError: It says something that cannot be; one sentence.
        """
        try:
            values = _mapping(content)
            _check_words(values, [key for key in cls.model_fields if key != "name"], "unknown key")
            listed = _spelled_out(values.get("methods"))
            experiment = cls.model_validate({**values, "methods": listed, "name": name})
            _check_meaning(experiment)
        except ValidationError as error:
            raise UsageError(f"experiment {where}: {sentence_of(error)}") from error
        except UsageError as error:
            raise UsageError(f"experiment {where}: {error}") from error
        return experiment

    @property
    def spanned(self) -> dict[str, list[Any]]:
        """All axes; several data sets are one."""
        if len(self.data) > 1 and DATA_AXIS not in self.axes:
            return {DATA_AXIS: list(self.data), **self.axes}
        return self.axes


def sentence_of(error: ValidationError) -> str:
    """The first thing that is wrong, with its place and what came."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = RunConfig.model_fields if error.title == RunConfig.__name__ else ()
        advice = did_you_mean(str(first["loc"][-1]), known)
        return f"unknown key {place}" + (f": {advice}" if advice else "")
    if not place:
        return message
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def _mapping(content: str) -> dict[str, Any]:
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        values = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise UsageError(f"it is no YAML: {error}".replace("\n", " ")) from error
    if not isinstance(values, dict) or root is None:
        raise UsageError(f"expected `key: value` lines, got a {type(values).__name__}")
    if twice := _twice(root):
        raise UsageError(f"{twice} is there twice")
    return values


def _twice(node: yaml.Node) -> str:
    """A key that a mapping somewhere below has twice; empty if none has."""
    below: Iterable[yaml.Node] = ()
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), ""):
            return str(twice)
        below = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        below = node.value
    return next(filter(None, map(_twice, below)), "")


def _spelled_out(methods: Any) -> list[Any]:
    """Every method as a mapping, `all` as what it stands for."""
    given = [methods] if isinstance(methods, str) else methods
    if not isinstance(given, list):
        raise UsageError(f"methods: expected a list of names or `{ALL}`, got {methods!r}")
    spelled = [each for word in given for each in (ALL_METHODS if word == ALL else (word,))]
    return [{"method": each} if isinstance(each, str) else each for each in spelled]


def _check_meaning(experiment: Experiment) -> None:
    """What no single field can know.

    Raises:
        UsageError: It is wrong.
    """
    known = {*known_methods(), *TITLES}
    for method in experiment.methods:
        _check_words([method.method], known, "methods: unknown method")
        if method.preset:
            _check_words([method.preset], PRESETS, f"{method.title}: unknown preset")
        if method.preset and method.method != FKD_RTM:
            raise UsageError(f"{method.title}: a preset is for {FKD_RTM} alone")
        _check_config_keys(method.config, method.title)
        for axis in experiment.axes:
            if axis in method.settings:
                raise UsageError(f"{method.title} sets {axis}, which is an axis: leave it to one of them")
    titles = [method.title for method in experiment.methods]
    for title in titles:
        if titles.count(title) > 1:
            raise UsageError(f"methods: {title} is there twice: give one of them another label")
    _check_config_keys(experiment.common, "common")
    spoken_for = (*DivisionSpec.model_fields, DATA_AXIS)
    for axis, values in experiment.axes.items():
        if axis not in spoken_for:
            _check_config_keys([axis], "axes", (*spoken_for, *RunConfig.model_fields))
        if not values:
            raise UsageError(f"axes: {axis} has no values")
    _check_words(experiment.axes.get(DATA_AXIS, ()), experiment.data, "axes: unknown data set")
    _check_words(experiment.metrics, MEASURES, "unknown metric")
    if experiment.columns and experiment.columns not in experiment.spanned:
        axes = ", ".join(experiment.spanned) or "none"
        raise UsageError(f"columns = {experiment.columns!r} is no axis: the axes are {axes}")


def _check_config_keys(keys: Iterable[str], where: str, known: Iterable[str] = ()) -> None:
    for key in keys:
        if key in _SAID_ELSEWHERE:
            raise UsageError(f"{where}: {key} is not set here: {_SAID_ELSEWHERE[key]}")
    _check_words(keys, known or RunConfig.model_fields, f"{where}: unknown key")


def _check_words(words: Iterable[Any], known: Iterable[str], what: str) -> None:
    listed = list(known)
    for word in words:
        if word not in listed:
            advice = did_you_mean(str(word), listed, f"expected one of {', '.join(listed)}")
            raise UsageError(f"{what} {word}: {advice}")
