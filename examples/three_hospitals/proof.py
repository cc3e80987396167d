"""What the example shows about bytes: ledgers of both sides, counters of the switch, and the images that stayed."""

from __future__ import annotations

import csv
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .hosts import Switch
from .transcript import StoryError, Transcript

MOST_OVERHEAD = 0.02
"""Of the messages in a ledger: TLS, HTTP/2, TCP and its acknowledgements, joining."""
CUT = 3 * 2**20
"""Most bytes that cable and kill can have cut, to be sent again: a chunk is at most 1 MiB."""
PROOF = "proof.json"
Row = tuple[int, ...]
"""Calls, payload and message bytes, up and down, and wasted ones."""
Rows = Mapping[tuple[int, str], Row]
"""By round and phase."""
_WHILE_GATHERING = {(0, "setup"), (0, "control")}
_COLUMNS = ("calls", "payload_up", "payload_down", "message_up", "message_down", "wasted")


@dataclass(frozen=True)
class SiteBytes:
    """Bytes of one hospital."""

    name: str
    sent: int
    """At its port of the switch: everything, from the first frame to the last."""
    received: int
    payload_up: int
    """Tensors it sent, as its own ledger says."""
    message_up: int
    """Messages around them, of calls that were answered."""
    message_down: int
    images: int
    """Its image files, packed together as small as xz can."""

    @property
    def unexplained(self) -> int:
        """Bytes it sent that are in no message that was answered."""
        return self.sent - self.message_up


@dataclass(frozen=True)
class Claim:
    """Something that the example promises."""

    text: str
    holds: bool


@dataclass
class Disturbed:
    """Rounds in which something was done to the hosts."""

    cable: range = range(0)
    kill: int = 0


def prove(
    switch: Switch, show: Transcript, folder: Path, hospitals: Sequence[str], disturbed: Disturbed
) -> None:
    """Compare what was counted, show it, and leave it as ``proof.json``.

    Args:
        switch: Where frames were counted.
        show: Receives the table and the claims.
        folder: Of the example.
        hospitals: Names of the sites.
        disturbed: Rounds in which a call may have been cut.

    Raises:
        StoryError: A claim does not hold.
    """
    ledgers = {name: _ledgers(folder, name) for name in hospitals}
    sites = [_bytes(switch, folder, name, own) for name, (own, _) in ledgers.items()]
    claims = [*_ledger_claims(list(ledgers.values()), disturbed), *_wire_claims(sites)]
    show.heading("What crossed the wire")
    show.say("\n".join(_table(sites)))
    show.say("\n".join(f"- {'Yes' if claim.holds else '**No**'}: {claim.text}" for claim in claims))
    found = {"sites": [asdict(site) for site in sites], "claims": [asdict(claim) for claim in claims]}
    (folder / PROOF).write_text(json.dumps(found, indent=2))
    if broken := [claim.text for claim in claims if not claim.holds]:
        raise StoryError(f"does not hold: {'; '.join(broken)}")


def _ledgers(folder: Path, name: str) -> tuple[Rows, Rows]:
    """The site's own, and the coordinator's rows for it."""
    (own,) = (folder / "hosts" / name).glob("run/*/client-*/ledger.csv")
    (hub,) = (folder / "hosts" / "hub").glob("run/*/ledger.csv")
    return _rows(own, name), _rows(hub, name)


def _rows(ledger: Path, client: str) -> Rows:
    with ledger.open() as file:
        return {
            (int(row["round"]), row["phase"]): tuple(int(row[name]) for name in _COLUMNS)
            for row in csv.DictReader(file)
            if row["client"] == client
        }


def _sum(rows: Rows, column: str) -> int:
    return sum(row[_COLUMNS.index(column)] for row in rows.values())


def _bytes(switch: Switch, folder: Path, name: str, own: Rows) -> SiteBytes:
    traffic = switch.traffic(name)
    images = sorted((folder / "hosts" / name / "images").rglob("*.png"))
    return SiteBytes(
        name=name,
        sent=traffic.from_host,
        received=traffic.to_host,
        payload_up=_sum(own, "payload_up"),
        message_up=_sum(own, "message_up") - _sum(own, "wasted"),
        message_down=_sum(own, "message_down"),
        images=len(lzma.compress(b"".join(path.read_bytes() for path in images))),
    )


def _ledger_claims(ledgers: Sequence[tuple[Rows, Rows]], disturbed: Disturbed) -> list[Claim]:
    places = {place for own, hub in ledgers for place in (*own, *hub)}
    answered = [place for place in places if place[0] not in disturbed.cable]
    quiet = [place for place in answered if place[0] != disturbed.kill and place not in _WHILE_GATHERING]
    up = _COLUMNS.index("payload_up")
    none: Row = (0,) * len(_COLUMNS)
    cut = f"{disturbed.cable.start} to {disturbed.cable.stop - 1}"
    return [
        Claim(
            "the tensors that hospitals sent are the same in both ledgers, to the byte, in every phase of all rounds "
            f"but those of the pulled cable ({cut}), where one side cannot know what reached the other",
            all(own.get(p, none)[up] == hub.get(p, none)[up] for own, hub in ledgers for p in answered),
        ),
        Claim(
            "all other columns are the same too, but for the time before anything is computed, when hospitals ask in "
            f"vain, and for the round in which the hub was killed ({disturbed.kill}): what it served in its last five "
            "seconds is not in its ledger",
            all(own.get(place) == hub.get(place) for own, hub in ledgers for place in quiet),
        ),
    ]


def _wire_claims(sites: Sequence[SiteBytes]) -> list[Claim]:
    counted = [
        (wire, booked)
        for site in sites
        for wire, booked in ((site.sent, site.message_up), (site.received, site.message_down))
    ]
    return [
        Claim(
            f"the switch counted what the ledgers say and at most {MOST_OVERHEAD:.0%} more, in each direction, besides "
            f"at most {CUT / 2**20:.0f} MiB of chunks that were cut and sent again",
            all(0 <= wire - booked <= MOST_OVERHEAD * booked + CUT for wire, booked in counted),
        ),
        Claim(
            "what a hospital sent besides messages in its ledger is too little to hold its images",
            all(site.unexplained < site.images for site in sites),
        ),
    ]


def _table(sites: Sequence[SiteBytes]) -> list[str]:
    rows = [
        ("sent, counted at the switch", [site.sent for site in sites]),
        ("… in messages of its ledger", [site.message_up for site in sites]),
        ("… … of these tensors", [site.payload_up for site in sites]),
        ("… besides: TLS, HTTP/2, TCP, what was sent again", [site.unexplained for site in sites]),
        ("its images, which stayed, packed by xz", [site.images for site in sites]),
        ("received, counted at the switch", [site.received for site in sites]),
        ("… in messages of its ledger", [site.message_down for site in sites]),
    ]
    ratios = [
        ("switch / ledger, sent", [site.sent / site.message_up for site in sites]),
        ("switch / ledger, received", [site.received / site.message_down for site in sites]),
    ]
    return [
        f"| bytes | {' | '.join(site.name for site in sites)} |",
        f"|---|{'---:|' * len(sites)}",
        *(f"| {name} | {' | '.join(f'{value:,}' for value in values)} |" for name, values in rows),
        *(f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} |" for name, values in ratios),
    ]
