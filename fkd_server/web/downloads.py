"""Tables of the run as files that a browser saves; made and sent piece by piece, and nothing is counted here."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from aiohttp import web

from fkd_common.csv_text import csv_cell
from fkd_common.errors import NotFoundError
from fkd_common.ledger import PHASE_NAMES
from fkd_common.message_json import as_json
from fkd_server.history import best_by_candidate
from fkd_server.overview import LEDGER_PAGE, Overview
from fkd_server.web.look import Look

CANDIDATES = ("student", "anchors", "moments", "published")
"""Models whose accuracy a round may tell."""

PIECES_AT_ONCE = 100
"""Pages, or lines, that are made in one go."""

_Row = dict[str, Any]


@dataclass(frozen=True)
class Download:
    """One file."""

    content_type: str
    pages: Callable[[Overview], Iterator[str]]
    """Its text, in pieces; each is made when it is asked for."""


def _ledger(overview: Overview) -> Iterator[str]:
    rows, header = overview.whole_ledger(), True
    while page := list(islice(rows, LEDGER_PAGE)):
        yield _csv((_flat(as_json(row)) for row in page), header=header)
        header = False


def _rounds_csv(overview: Overview) -> Iterator[str]:
    yield _csv(_round_row(as_json(status)) for status in overview.all_rounds(0))


def _round_row(status: _Row) -> _Row:
    phases = {phase["phase"]: phase for phase in status["phases"]}
    row = {"round": status["round"], "seconds": status["seconds"], "cohort": " ".join(status["cohort"])}
    row["published"] = status["published"]
    row.update({f"accuracy_{name}": status["accuracy"].get(name) for name in CANDIDATES})
    best = best_by_candidate(status["validation"])
    if status["published"] in best:
        best["published"] = best[status["published"]]
    row.update({f"validation_{name}": best.get(name) for name in CANDIDATES})
    for name in PHASE_NAMES.values():
        if name not in ("control", "setup"):
            row[f"{name}_s"] = phases[name]["seconds"] if name in phases else None
    return row


def _rounds_jsonl(overview: Overview) -> Iterator[str]:
    return (_json_line(as_json(status)) for status in overview.all_rounds(0))


def _clients(overview: Overview) -> Iterator[str]:
    status = as_json(overview.status())
    rows = []
    for client in status["clients"]:
        counts = dict(zip(status["classes"], client.pop("class_counts"), strict=False))
        row = _flat(client)
        row.update({f"samples_of_{name}": counts.get(name) for name in status["classes"]})
        rows.append(row)
    yield _csv(rows)


def _events(overview: Overview) -> Iterator[str]:
    return (_json_line(as_json(event)) for event in overview.all_events(0))


DOWNLOADS = {
    "ledger.csv": Download("text/csv", _ledger),
    "rounds.csv": Download("text/csv", _rounds_csv),
    "rounds.jsonl": Download("application/jsonl", _rounds_jsonl),
    "clients.csv": Download("text/csv", _clients),
    "events.jsonl": Download("application/jsonl", _events),
}
"""By file name."""


async def send_download(name: str, request: web.Request, look: Look, answer_s: float) -> web.StreamResponse:
    """Send a file while it is made; a peer that takes no piece of it for so many seconds is dropped.

    Raises:
        NotFoundError: There is no such file.
        UnreachableError: There is no run yet.
    """
    if name not in DOWNLOADS:
        raise NotFoundError(f"no download {name[:80]!r}: there are {', '.join(DOWNLOADS)}")
    file = DOWNLOADS[name]
    pages = await look.ask(file.pages)
    response = web.StreamResponse(
        headers={
            "Content-Type": f"{file.content_type}; charset=utf-8",
            "Content-Disposition": f'attachment; filename="{name}"',
        }
    )
    await response.prepare(request)
    while text := await look.think(lambda: "".join(islice(pages, PIECES_AT_ONCE))):
        try:
            async with asyncio.timeout(answer_s):
                await response.write(text.encode())
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            break
    return response


def _flat(row: _Row) -> _Row:
    """Counts of bytes beside the rest."""
    return {**{key: value for key, value in row.items() if key != "bytes"}, **row["bytes"]}


def _csv(rows: Iterable[_Row], *, header: bool = True) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        if header:
            writer.writerow([csv_cell(name) for name in row])
            header = False
        writer.writerow([csv_cell(value) for value in row.values()])
    return out.getvalue()


def _json_line(content: _Row) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"
