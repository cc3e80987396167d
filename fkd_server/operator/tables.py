"""What operators are shown, as text for a person: sentences and tables from fkd.v1.Admin's answers; asks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fkd_common.ledger import PHASE_NAMES
from fkd_common.pb import admin_pb2 as pb
from fkd_common.printable import printable
from fkd_server.history import best_by_candidate
from fkd_server.result_tables import align_right, percent

_BYTE_COUNTS = ("calls", "payload_up", "payload_down", "message_up", "message_down", "wasted")
_CANDIDATES = ("student", "anchors", "moments", "published", "personal")


def status_view(status: pb.StatusResponse) -> RenderableType:
    """Where a run stands: a few lines, then its clients."""
    if status.state == "preparing":
        return Text(status.waiting_for)
    relays = [f"a relay of the coordinator at {status.upstream}"] if status.upstream else []
    lines = [_where(status), *relays, status.waiting_for]
    if status.HasField("model"):
        lines.append(_published(status.model))
    if status.HasField("last_scored"):
        lines.append(_score(status.last_scored))
    lines.append(_cost(status))
    text = Text("\n".join(map(printable, lines)))
    return Group(text, client_states(status)) if status.clients else text


def _where(status: pb.StatusResponse) -> str:
    state = "paused" if status.paused and status.state in ("gathering", "running") else status.state
    if status.round < 0:
        where = "before the first round"
    else:
        where = f"round {status.round} of {status.rounds}" + (f", {status.phase}" if status.phase else "")
    return f"run {status.run_id}: {state}, {where}, served for {duration(status.serving_s)}"


def _published(model: pb.PublishedModel) -> str:
    shares = [
        f"{percent(getattr(model, field))} on the {where}"
        for field, where in (("accuracy", "test set"), ("validation", "held-out samples"))
        if model.HasField(field)
    ]
    scored = f": {', '.join(shares)}" if shares else ""
    return f"published model: {model.published}, of round {model.round}{scored}; sha256 {model.sha256[:12]}"


def _score(scored: pb.RoundStatus) -> str:
    on, scores = ("test set", scored.accuracy) if scored.accuracy else ("held-out samples", scored.validation)
    shown = ", ".join(f"{name} {percent(scores[name])}" for name in _best_of(scores))
    return f"after round {scored.round}, on the {on}: {shown}"


def _best_of(scores: Iterable[str]) -> list[str]:
    """Candidates in their usual order, then others (one per ridge strength, in a vote)."""
    return [name for name in _CANDIDATES if name in scores] + sorted(set(scores) - set(_CANDIDATES))


def _cost(status: pb.StatusResponse) -> str:
    total = status.bytes
    text = f"{size(total.payload_up)} up and {size(total.payload_down)} down of payload so far"
    if status.fedavg_bytes:
        text += f"; full-model FedAvg would have cost {size(status.fedavg_bytes)}"
    return text


def client_states(status: pb.StatusResponse) -> Table:
    """Who takes part and what each does."""
    table = Table("client", "state", "seen", "doing", box=None, pad_edge=False)
    for client in status.clients:
        share = f" {client.progress:.0%}" if client.activity and client.state == "working" else ""
        doing = printable(client.activity + share)
        table.add_row(client.name, client.state, f"{duration(client.last_seen_s)} ago", doing)
    return table


def clients_table(clients: Sequence[pb.ClientStatus]) -> Table:
    """What is known of every client."""
    columns = ("client", "state", "uploads", "missed", "samples", "reliability", "weight", "up", "down")
    table = Table(*columns, box=None, pad_edge=False)
    for client in clients:
        table.add_row(
            client.name,
            client.state,
            str(client.uploads),
            str(client.missed),
            f"{client.samples:,}" if client.samples else "–",
            f"{client.reliability:.3f}" if client.samples else "–",
            f"{client.weight:.1%}" if client.weight else "–",
            size(client.bytes.payload_up),
            size(client.bytes.payload_down),
        )
    return align_right(table)


def rounds_table(rounds: Sequence[pb.RoundStatus]) -> Table:
    """What happened in rounds that are over."""
    columns = ("round", "seconds", "clients", "missed", "held out", "student", "published", "by vote")
    table = Table(*columns, box=None, pad_edge=False)
    for status in rounds:
        missed = {name for phase in status.phases for name in (*phase.missing, *phase.failed)}
        vote = best_by_candidate(status.validation).get(status.published)
        table.add_row(
            str(status.round),
            f"{status.seconds:.1f}",
            str(len(status.cohort)),
            ", ".join(sorted(missed)) or "–",
            percent(vote),
            percent(status.accuracy.get("student")),
            percent(status.accuracy.get("published")),
            status.published or "–",
        )
    return align_right(table)


def ledger_table(rows: Sequence[pb.LedgerRow]) -> Table:
    """Bytes by client, round and phase, in full and in the order of the protocol, and their sum."""
    columns = ("client", "round", "phase", *(name.replace("_", " ") for name in _BYTE_COUNTS))
    table = Table(*columns, box=None, pad_edge=False)
    order = {phase: place for place, phase in enumerate(PHASE_NAMES.values())}
    total = [0] * len(_BYTE_COUNTS)
    for row in sorted(rows, key=lambda row: (row.client, row.round, order.get(row.phase, -1))):
        numbers = [getattr(row.bytes, name) for name in _BYTE_COUNTS]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        table.add_row(row.client or "–", str(row.round), row.phase, *(f"{number:,}" for number in numbers))
    table.add_row("all", "", "", *(f"{number:,}" for number in total))
    return align_right(table)


def event_line(event: pb.EventStatus) -> str:
    """One event."""
    place = [f"round {event.round}" if event.HasField("round") else "", event.phase, event.client]
    what = ", ".join(part for part in (*place, event.detail) if part)
    return printable(f"{event.time[11:19]} {event.name:<18} {what}").rstrip()


def show(what: RenderableType) -> None:
    """Print it; where no terminal says how wide it is, lines are as long as they need to be."""
    console = plain_console()
    if not console.is_terminal:
        console.width = 200
    console.print(what, soft_wrap=not console.is_terminal)


def plain_console() -> Console:
    """Standard output, on which what clients and operators are called is text and nothing else."""
    return Console(markup=False, emoji=False, highlight=False)


def size(count: float) -> str:
    """Bytes in decimal units: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds as a person says them: 8 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if minutes == 0:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} min {whole % 60} s"
    return f"{hours} h {minutes % 60} min"
