"""What no training puts into an upload; finds a flaw, repairs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.method.student_checks import MAX_RESPONSE, UPLOAD_ROOM

MAX_LOGIT = UPLOAD_ROOM * MAX_RESPONSE
"""Largest magnitude of what a site's network computes."""
MAX_EMBEDDING = MAX_RESPONSE
"""Largest magnitude in an embedding."""


def too_large(what: str, values: NDArray[Any], limit: float) -> str | None:
    """What is wrong with values beyond a limit; None if nothing is."""
    largest = float(np.abs(values).max(initial=0.0))
    return None if largest <= limit else f"{what} of magnitude {largest:.3g}; at most {limit:.0e} is accepted"


def no_classes(labels: NDArray[np.integer], num_classes: int) -> str | None:
    """What is wrong with labels outside 0 ... C−1; None if nothing is."""
    lowest, highest = int(labels.min(initial=0)), int(labels.max(initial=0))
    if lowest >= 0 and highest < num_classes:
        return None
    return f"labels {lowest}...{highest}; expected 0...{num_classes - 1}"
