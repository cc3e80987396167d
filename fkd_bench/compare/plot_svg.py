"""Figures as SVG: files that are the same bytes for the same figure, and elements of a page with its colours."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fkd_bench.compare.plot_style import VARIABLES, styled
from fkd_common.printable import printable

_TAG = re.compile(r"<[^>]+>")
_ID = re.compile(r' id="([^"]+)"')
_USED = re.compile(r'(?:url\(#|href="#)([^")]+)')
_PATH = re.compile(r'(?<= d=")[^"]*')
_AROUND_COMMANDS = re.compile(r"\s*([A-Za-z])\s*")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_NOT_TURNED = re.compile(r' transform="rotate\(-0 [^"]*"')
_COLOUR = re.compile("|".join(VARIABLES))
_SUPERFLUOUS = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<!DOCTYPE[^>]*>|<!--.*?-->", re.DOTALL)
_FONTS = " font-family: 'DejaVu Sans', sans-serif;"
_WIDE_FONTS = " font-family: DejaVu Sans, Verdana, sans-serif;"


@styled
def svg(figure: Figure) -> str:
    """A figure as an SVG file, without a date; letters are text."""
    out = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(out, format="svg")
    text = _SUPERFLUOUS.sub("", out.getvalue())
    used = set(_USED.findall(text))
    text = _TAG.sub(lambda found: _shorter(found[0], used), text)
    return re.sub(r">\s+<", ">\n<", text).strip() + "\n"


def within_page(file: str, name: str, summary: str) -> str:
    """An SVG file as an element of a page: ids of its own, and colours and letters that the page may change.

    Args:
        file: As :func:`svg` made it.
        name: Unlike that of every other figure of the page; letters, digits and hyphens.
        summary: What is seen, for those who do not see it.
    """
    text = _TAG.sub(lambda found: _placed(found[0], name), file[file.index("<svg") :]).strip()
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    label = escape(printable(summary))
    return f'<svg role="img" aria-label="{label}" {box[0] if box else ""}>{rest}'


def _shorter(tag: str, used: set[str]) -> str:
    tag = _ID.sub(lambda found: found[0] if found[1] in used else "", tag)
    tag = _PATH.sub(lambda found: _AROUND_COMMANDS.sub(r"\1", found[0]), tag)
    if not tag.startswith("<image"):
        tag = _LONG_NUMBER.sub(_two_decimals, tag)
    tag = _NOT_TURNED.sub("", tag).replace(_FONTS, _WIDE_FONTS)
    return tag.replace("<svg ", '<svg style="stroke-linejoin: round" ')


def _two_decimals(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _placed(tag: str, name: str) -> str:
    tag = _ID.sub(rf' id="{name}-\1"', tag)
    tag = _USED.sub(lambda found: found[0].replace("#", f"#{name}-"), tag)
    tag = tag.replace(_WIDE_FONTS, "").replace("xlink:href", "href")
    return _COLOUR.sub(lambda found: f"var({VARIABLES[found[0]]})", tag)
