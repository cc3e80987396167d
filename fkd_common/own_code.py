"""A method's own code and what may go wrong in it: one sentence that names the line; decides nothing about the run.

Whoever runs a method calls it inside :meth:`OwnCode.at_work` and checks there what it returns.
"""

from __future__ import annotations

import inspect
import json
import traceback
from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fkd_common.errors import FkdError, InvalidUploadError, MethodError
from fkd_common.exchange_method import MODEL, Aggregate, ExchangeMethod, Layout, NoAggregateError, State
from fkd_common.method.student_layout import TensorSpec, layout_of
from fkd_common.tensors import check_schema

_MAX_WORDS = 240
"""Characters of another's error message that are repeated."""
_OF_THE_ROUND = frozenset({"returned", "missing", "failed", "seconds", "fold_seconds", "samples", "skipped"})
"""Names in a round's record that are not the method's."""
_KINDS = "biuf"
"""NumPy's letters for what a tensor may hold: booleans, integers, floats."""


class WrongResultError(Exception):
    """What a method returned is not what its interface says."""


@dataclass(frozen=True)
class OwnCode:
    """The code of one method."""

    name: str
    """What the run calls it."""
    kind: type[ExchangeMethod]

    @contextmanager
    def at_work(self, function: str, round_number: int | None = None) -> Iterator[None]:
        """Say whose fault it is if something goes wrong inside.

        Args:
            function: Which of the method's functions is called.
            round_number: In which round, if in one.

        Raises:
            MethodError: The function raised something that is no error of ours, or :class:`WrongResultError` was.
        """
        try:
            yield
        except (FkdError, NoAggregateError):
            raise
        except WrongResultError as error:
            went = f"{function} returned {error}"
            raise self._blamed(went, self._definition(function), round_number) from error
        except Exception as error:
            words = " ".join(str(error).split())[:_MAX_WORDS]
            went = f"{function} failed with {type(error).__name__}" + (f": {words}" if words else "")
            raise self._blamed(went, self._line(error) or self._definition(function), round_number) from error

    def _blamed(self, went: str, place: str, round_number: int | None) -> MethodError:
        where = "" if round_number is None else f", round {round_number}"
        return MethodError(f"method {self.name}{where} ({place}): {went}")

    def _line(self, error: Exception) -> str:
        """Where it went wrong in the method's own package, else in what it is built on; empty if in neither."""
        frames = [
            (str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        for package in dict.fromkeys(_package(kind.__module__) for kind in self._kinds()):
            own = [(module, file, line) for module, file, line in frames if _package(module) == package]
            if own:
                module, file, line = own[-1]
                return f"{_short(file, module)}:{line}"
        return ""

    def _definition(self, function: str) -> str:
        """Where a function of the method begins."""
        for kind in self._kinds():
            found = vars(kind).get(function)
            whole = getattr(found, "fget", found)
            code = getattr(inspect.unwrap(whole), "__code__", None) if callable(whole) else None
            if code is not None:
                return f"{_short(code.co_filename, kind.__module__)}:{code.co_firstlineno}"
        return f"{self.kind.__module__}.{self.kind.__qualname__}"

    def _kinds(self) -> Iterator[type]:
        """The method's class and those it is built on, as far as the interface."""
        return (kind for kind in self.kind.__mro__ if kind not in (ExchangeMethod, ABC, object))


def _package(module: str) -> str:
    return module.partition(".")[0]


def _short(file: str, module: str) -> str:
    """A source file as its package has it: where that is installed is nobody's business."""
    path = Path(file)
    depth = module.count(".") + (2 if path.name == "__init__.py" else 1)
    return "/".join(path.parts[-depth:])


# -- what methods return --------------------------------------------------------------------------


def check_tensors(what: str, tensors: object, *, finite: bool = True) -> None:
    """See that something is named tensors.

    Args:
        what: What they are, for a message.
        tensors: By name.
        finite: Whether floats must be.

    Raises:
        WrongResultError: It is not.
    """
    if not isinstance(tensors, Mapping):
        raise WrongResultError(f"{what} as {_kind(tensors)}; expected a dict of NumPy arrays by name")
    for name, array in tensors.items():
        if not isinstance(array, np.ndarray | np.generic):
            raise WrongResultError(f"{what} with {name!r} as {_kind(array)}; expected a NumPy array")
        if not isinstance(name, str) or array.dtype.kind not in _KINDS or array.dtype.itemsize > 8:
            raise WrongResultError(
                f"{what} with {name!r} of dtype {array.dtype}; expected a name, and booleans, integers or floats"
            )
        if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WrongResultError(f"{what} with NaN or infinity in {name!r}")


def check_groups(what: str, groups: object, *, finite: bool = True) -> None:
    """See that something is groups of named tensors.

    Raises:
        WrongResultError: It is not.
    """
    if not isinstance(groups, Mapping):
        raise WrongResultError(f"{what} as {_kind(groups)}; expected a dict of groups of tensors")
    for name, tensors in groups.items():
        if not isinstance(name, str) or "|" in name:
            raise WrongResultError(f"{what} with a group named {name!r}; expected text without '|'")
        check_tensors(f"{what} with group {name!r}", tensors, finite=finite)


def check_layout(what: str, tensors: Any, layout: Layout) -> None:
    """See that tensors have these names, shapes and dtypes, and are finite.

    Raises:
        WrongResultError: They have not, or are not.
    """
    check_tensors(what, tensors)
    _check_shapes(what, tensors, layout)


def _check_shapes(what: str, tensors: Any, layout: Layout) -> None:
    """The same of tensors whose values have been looked at."""
    try:
        check_schema(tensors, layout, finite=False)
    except InvalidUploadError as error:
        raise WrongResultError(f"{what} of another layout: {error}") from error


def check_scores(scores: object, rows: int, num_classes: int) -> None:
    """See that something is (rows, C) scores.

    Raises:
        WrongResultError: It is not.
    """
    if not isinstance(scores, np.ndarray) or scores.dtype.kind not in "fiu":
        raise WrongResultError(f"{_kind(scores)}; expected a NumPy array of numbers")
    if scores.shape != (rows, num_classes):
        raise WrongResultError(f"scores of shape {scores.shape}; expected {(rows, num_classes)}")


def model_layout(state: State) -> Layout | None:
    """Of a state's global model; None if it has none."""
    tensors = state.get(MODEL)
    return layout_of(tensors) if tensors else None


def checked_layout(layout: Layout) -> Layout:
    """A layout, if it is one.

    Raises:
        WrongResultError: It is not.
    """
    if not isinstance(layout, Mapping) or not all(isinstance(spec, TensorSpec) for spec in layout.values()):
        raise WrongResultError("no layout; expected a dict of TensorSpec by name")
    return layout


def check_aggregate(result: object, model: Layout | None) -> None:
    """See that something is an :class:`Aggregate` that can be kept.

    Args:
        result: What was returned.
        model: Of the global model before round 1, which it keeps; None where the state has none.

    Raises:
        WrongResultError: It is not.
    """
    if not isinstance(result, Aggregate):
        raise WrongResultError(f"{_kind(result)}; expected an Aggregate")
    check_groups("an Aggregate", result.groups)
    if model is not None and MODEL in result.groups:
        _check_shapes(f"group {MODEL!r}", result.groups[MODEL], model)
    record: Any = result.record
    if not isinstance(record, dict):
        raise WrongResultError(f"a record as {_kind(record)}; expected a dict")
    if taken := sorted(_OF_THE_ROUND & record.keys()):
        raise WrongResultError(f"a record with {', '.join(taken)}, which the round's record has already")
    weights, excluded = record.get("weights", {}), record.get("excluded", {})
    if not all(isinstance(by_client, Mapping) for by_client in (weights, excluded)) or not all(
        isinstance(weight, int | float) for weight in weights.values()
    ):
        raise WrongResultError("a record whose weights or excluded are not by client")
    try:
        json.dumps(record)
    except (TypeError, ValueError) as error:
        raise WrongResultError(f"a record that JSON cannot hold: {error}") from error


def _kind(value: object) -> str:
    return type(value).__name__
