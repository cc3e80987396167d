"""How every plot looks: colours by label, letters, ends of lines named beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fkd_bench.compare.survey import Survey
from fkd_common.printable import printable

INK, QUIET, LINE, GROUND, OTHERS = "#18212c", "#535f6e", "#d8dee6", "#ffffff", "#8793a1"
OWN = "#c2410c"
PALETTE = ("#1c30a6", "#387e64", "#ae4ba5", "#791e20", "#5c3057")
"""With :data:`OWN` at least 25 apart (CIE76) for every kind of colour vision, and readable as text on white."""
HEAT = (47 / 255, 127 / 255, 196 / 255)
STRONGEST = 0.75
"""Opacity of the fullest heat map cell, on which ink stays readable in both themes."""
VARIABLES = {
    INK: "--text",
    QUIET: "--quiet",
    LINE: "--line",
    GROUND: "--surface",
    OTHERS: "--others",
    OWN: "--own",
    **{colour: f"--hue{place}" for place, colour in enumerate(PALETTE)},
}
"""Names under which a page may give each colour another value."""
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.4, 1.2, 1.4)))
MARKERS = ("o", "s", "^", "D")

WIDTH, LEFT = 4.2, 0.62
"""Inches, about what a phone shows at full size; and those left of axes with numbers."""
TITLE_LEFT = 0.1
SMALL, SIZE = 8.0, 8.8
"""Points."""
LONGEST_LABEL = 22
LONGEST_TITLE = 52
FOCUS = 4
"""Methods told apart by colour where there is no room to name all."""
RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fkd",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": SIZE,
    "axes.titlesize": SIZE,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "xtick.bottom": False,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "figure.facecolor": GROUND,
}

_P = ParamSpec("_P")
_R = TypeVar("_R")


class LacksData(Exception):  # noqa: N818 - no error: a plot that these records cannot fill
    """Why a plot cannot be drawn, as a sentence."""


@dataclass(frozen=True)
class Look:
    """One colour, dash and marker for every label, the same in all plots of a report."""

    labels: tuple[str, ...]
    emphasised: str | None = None
    clients_only: frozenset[str] = field(default_factory=frozenset)
    """Labels that get a dagger where global models are shown."""

    @classmethod
    def of(cls, survey: Survey, clients_only: frozenset[str]) -> Look:
        """The look of an experiment."""
        return cls(survey.labels, survey.emphasised, clients_only)

    def colour(self, label: str) -> str:
        """As a hexadecimal number of :data:`VARIABLES`."""
        return OWN if label == self.emphasised else PALETTE[self._place(label) % len(PALETTE)]

    def line(self, label: str) -> dict[str, Any]:
        """How its lines are drawn."""
        own = label == self.emphasised
        dashes = "solid" if own else DASHES[self._place(label) // len(PALETTE) % len(DASHES)]
        return {
            "color": self.colour(label),
            "linestyle": dashes,
            "linewidth": 2.4 if own else 1.1,
            "zorder": 5 if own else 3,
        }

    def marker(self, label: str) -> str:
        """For single points."""
        if label == self.emphasised:
            return MARKERS[0]
        return MARKERS[self._place(label) // len(PALETTE) % len(MARKERS)]

    def name(self, label: str, *, dagger: bool = False) -> str:
        """As plots write it: one line, not too long."""
        text = printable(label)
        text = text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"
        return f"{text}†" if dagger and label in self.clients_only else text

    def focus(self, scores: Mapping[str, float]) -> list[str]:
        """The emphasised label and the best others, few enough for colours, in the order of labels."""
        ranked = sorted(scores, key=lambda label: (label != self.emphasised, -scores[label]))
        return [label for label in self.labels if label in ranked[:FOCUS]]

    def _place(self, label: str) -> int:
        return [one for one in self.labels if one != self.emphasised].index(label)


def styled(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """Draw in this style, whatever the machine's own matplotlibrc says."""

    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(RC)
            return draw(*args, **kwargs)

    return drawn


def axes(
    height: float, *, left: float, right: float, title: str, bottom: float = 0.45
) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; margins in inches, the same on every machine."""
    figure = Figure(figsize=(WIDTH, height))
    top, inner = 0.3 if title else 0.12, WIDTH - left - right
    ax = figure.add_axes((left / WIDTH, bottom / height, inner / WIDTH, (height - bottom - top) / height))
    shown = title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"
    ax.set_title(shown, x=(TITLE_LEFT - left) / inner)  # where names take much room, it needs theirs
    ax.tick_params(labelsize=SMALL)
    ax.patch.set_visible(False)
    return figure, ax


def room_for(names: Sequence[str]) -> float:
    """Inches that the longest of these takes in small letters."""
    return 0.075 * max((len(name) for name in names), default=0) + 0.2


def name_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str, bool]], *, height: float) -> None:
    """Write names beside the right edge, next to the ends of their lines, apart from each other.

    Args:
        ax: Whose limits are final.
        ends: x, y of a line's end, its name and colour, and whether it is emphasised.
        height: Of the axes, in inches.
    """
    ordered = sorted(ends, key=lambda end: end[1])
    to_share = ax.transAxes.inverted()
    at = [float(to_share.transform(ax.transData.transform((end[0], end[1])))[1]) for end in ordered]
    gap = (SMALL + 1.2) / 72 / height
    for (x, y, name, colour, strong), place in zip(ordered, spread_out(at, gap), strict=True):
        ax.annotate(
            name,
            (x, y),
            xytext=(1.035, place),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontsize=SMALL,
            fontweight="bold" if strong else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.5,
                "alpha": 0.55,
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )


def spread_out(places: Sequence[float], gap: float, low: float = -0.04, high: float = 1.04) -> list[float]:
    """Ascending places moved apart by at least ``gap``, near where they were and within bounds if there is room."""
    blocks: list[list[float]] = []
    for place in places:
        blocks.append([place])
        while len(blocks) > 1 and _overlap(blocks[-2], blocks[-1], gap):
            last = blocks.pop()
            blocks[-1].extend(last)
    spread = [
        _middle(block) + gap * (place - (len(block) - 1) / 2)
        for block in blocks
        for place in range(len(block))
    ]
    for place in range(len(spread)):
        spread[place] = max(spread[place], low + gap * place)
    for place in range(len(spread)):
        spread[-1 - place] = min(spread[-1 - place], high - gap * place)
    return spread


def _overlap(lower: Sequence[float], upper: Sequence[float], gap: float) -> bool:
    return _middle(upper) - _middle(lower) < gap * (len(lower) + len(upper)) / 2


def _middle(block: Sequence[float]) -> float:
    return float(np.mean(block))


def dots(ax: Axes, x: Sequence[float], y: Sequence[float], colour: str, size: float, **more: Any) -> None:
    """Round dots as one path, many times smaller than markers: lines of no length with round ends."""
    points = np.full((len(x), 3, 2), np.nan)
    points[:, 0] = points[:, 1] = np.stack([x, y], axis=1)
    (line,) = ax.plot(
        *points.reshape(-1, 2).T,
        color=colour,
        linewidth=size,
        solid_capstyle="round",
        clip_on=False,
        **more,
    )
    line.get_path().should_simplify = False


def thinned(length: int, limit: int) -> list[int]:
    """Indices of at most ``limit`` of so many points, evenly, with the first and the last."""
    if length <= limit:
        return list(range(length))
    return [round(place) for place in np.linspace(0, length - 1, limit)]
