"""Images that cannot be used, and how many of them are too many; never decodes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fkd_common.errors import DataError

DEFAULT_MAX_BAD = 0.01
"""Share of unusable images above which a data set is refused."""

_NAMED = 5


@dataclass(frozen=True)
class BadImage:
    """One image that was left out: where it lies and what is wrong with it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def refuse_if_too_many(bad: Sequence[BadImage], total: int, max_bad: float, where: str) -> None:
    """Accept up to a share of bad images, refuse above it.

    Args:
        bad: Images that could not be used.
        total: Number of images looked at, the bad ones included.
        max_bad: Largest share accepted, in [0, 1].
        where: What was read, for the message.

    Raises:
        DataError: More than ``max_bad`` of the images are bad, or no good one is left.
    """
    if len(bad) <= max_bad * total and len(bad) < total:
        return
    named = "; ".join(str(image) for image in bad[:_NAMED])
    more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    raise DataError(
        f"{where}: {len(bad)} of {total} images cannot be used, at most {max_bad:.2%} may be "
        f"({named}{more}): repair or remove them, or raise --max-bad"
    )
