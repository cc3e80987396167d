"""What a student must satisfy before others compute with it; finds the first flaw, repairs nothing.

Finite weights are not enough: three layers of weights of 1e6 leave float32's range on any input, and a variance of
0 multiplies by 316. So a student also has to answer for the anchors, the only inputs a coordinator has: in eval
mode, and with the statistics of the batch, as the next round's training will compute it.

Students trained as by default stay below 100 everywhere. An average is held to the limits below; a single student
to ten times as much, so that whatever is trained from an average at its limit is still accepted. A site's images
may excite a student ten times more than the anchors do, and its features then still pass ``moment_checks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import Norm
from fkd_common.method.student_forward import student_responses

MAX_WEIGHT = 1e3
"""Largest magnitude of an averaged student's weight or bias."""
MAX_RESPONSE = 1e4
"""Largest magnitude of what an averaged student computes on the anchors, in any layer."""
UPLOAD_ROOM = 10.0
"""A single student's limits, in those of an average."""
UPLOAD_ANCHORS = 64
"""Anchors that a single student has to answer for; an average answers for all, and who spoils it is left out."""


def student_flaw(
    student: Mapping[str, NDArray[Any]], anchors: NDArray[np.float32], norm: Norm, room: float = 1.0
) -> str | None:
    """The first thing that makes a student unusable for others, or None.

    Args:
        student: finite tensors of the run's layout.
        anchors: (m, d) embeddings.
        norm: the student's normalisation.
        room: factor on the limits; 1 for an average, `UPLOAD_ROOM` for a single student.

    Returns:
        A sentence: what was expected and what came.
    """
    for name, array in student.items():
        if np.issubdtype(array.dtype, np.integer):
            continue
        if name.endswith("running_var") and array.min(initial=0.0) < 0:
            return f"tensor {name!r} has a negative variance"
        limit, largest = room * _limit(name, room), float(np.abs(array).max(initial=0.0))
        if largest > limit:
            return f"tensor {name!r} has a value of magnitude {largest:.3g}; at most {limit:.0e} is accepted"
    for mode, name, values in _responses(student, anchors, norm):
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= room * MAX_RESPONSE:  # also NaN
            return (
                f"on the anchors {mode}, values after {name!r} reach {largest:.3g}; "
                f"at most {room * MAX_RESPONSE:.0e} is accepted"
            )
    return None


def _limit(name: str, room: float) -> float:
    """Running statistics are those of responses: means as large, variances as large as their squares."""
    if name.endswith("running_mean"):
        return MAX_RESPONSE
    return room * MAX_RESPONSE**2 if name.endswith("running_var") else MAX_WEIGHT


def _responses(
    student: Mapping[str, NDArray[Any]], anchors: NDArray[np.float32], norm: Norm
) -> Iterator[tuple[str, str, NDArray[np.float32]]]:
    for name, values in student_responses(student, anchors, norm).named():
        yield "in eval mode", name, values
    if norm is Norm.BATCH:
        for name, values in student_responses(student, anchors, norm, batch_statistics=True).named():
            yield "with their own statistics", name, values
