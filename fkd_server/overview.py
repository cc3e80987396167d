"""A run as an operator sees it: the answers of fkd.v1.Admin, the page and the metrics all come from here; read only.

Safe to use from any thread. Looking at the state machine waits for the call or the step that is at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import version

from fkd_common.ledger import PHASE_NAMES, ByteCount, LedgerKey
from fkd_common.pb import admin_pb2 as pb
from fkd_server.chronicle import Chronicle, WrittenModel
from fkd_server.coordinator import WAITING, Coordinator
from fkd_server.history import best_by_candidate
from fkd_server.run_state import ClientRecord
from fkd_server.service import CoordinatorService
from fkd_server.store import RunStore

ROUNDS_PAGE = 100
ROUNDS_PAGE_BYTES = 1 << 20
LEDGER_PAGE = 1000


class Overview:
    """What can be asked of a run at work."""

    def __init__(
        self,
        service: CoordinatorService,
        chronicle: Chronicle,
        store: RunStore,
        embedding_dim: int,
    ) -> None:
        """Look on.

        Args:
            service: Answers for the state machine and the bytes.
            chronicle: Has what happened.
            store: Knows every upload that counted.
            embedding_dim: Width of the extractor's output, which a full model's last layer would read.
        """
        self._service = service
        self._chronicle = chronicle
        self._store = store
        self._version = version("fkd")
        self._started = service.look(lambda run, now: now)
        num_classes = len(service.identity.classes)
        layer = 4 * (embedding_dim + 1) * num_classes
        self._full_model_bytes = service.identity.artifacts["extractor"].size + layer

    def status(self) -> pb.StatusResponse:
        """Where the run stands, and who takes part."""
        history, identity = self._chronicle.history, self._service.identity
        answer = self._service.look(self._where_it_stands)
        answer.run_id, answer.version = identity.run_id, self._version
        answer.config_sha256 = self._service.config_sha256
        answer.classes.extend(identity.classes)
        answer.rounds_done = history.count()
        if (scored := history.last_scored()) is not None:
            answer.last_scored.CopyFrom(scored)
        if (model := self._chronicle.model) is not None:
            answer.model.CopyFrom(_published(model, history.round(model.round)))
        uploads, (by_client, by_phase) = self._store.uploads_by_client(), self._service.ledger.sums()
        answer.bytes.CopyFrom(_totals(by_client.values()))
        for phase, count in by_phase.items():
            answer.bytes_by_phase[phase].CopyFrom(_totals([count]))
        for client in answer.clients:
            tally = history.client(client.name)
            client.uploads = uploads.get(client.name, 0)
            client.missed, client.samples = tally.missed, tally.samples
            client.reliability, client.weight = tally.reliability, tally.weight
            client.class_counts.extend(tally.class_counts)
            client.fedavg_bytes = 2 * tally.students * self._full_model_bytes
            client.bytes.CopyFrom(_totals([by_client.get(client.name, ByteCount())]))
            answer.fedavg_bytes += client.fedavg_bytes
        return answer

    def rounds(self, first: int) -> pb.RoundsResponse:
        """Rounds that are over, from the one with that number on: as many as fit an answer, at least one."""
        answer = pb.RoundsResponse()
        for status in self._chronicle.history.rounds(first, ROUNDS_PAGE):
            if answer.rounds and answer.ByteSize() + status.ByteSize() > ROUNDS_PAGE_BYTES:
                break
            answer.rounds.append(status)
        return answer

    def ledger(self, offset: int) -> pb.LedgerResponse:
        """Rows of the ledger, after the first so many."""
        rows = self._service.ledger.rows(offset, LEDGER_PAGE)
        return pb.LedgerResponse(rows=map(_ledger_row, rows))

    def all_rounds(self, first: int) -> Iterator[pb.RoundStatus]:
        """All rounds that are over, from the one with that number on, taken a page at a time."""
        while page := self._chronicle.history.rounds(first, ROUNDS_PAGE):
            yield from page
            first = page[-1].round + 1

    def whole_ledger(self) -> Iterator[pb.LedgerRow]:
        """All rows, as this moment has them: pages that are asked for one after another would repeat or lack some."""
        return map(_ledger_row, self._service.ledger.rows())

    def events(self, after: int) -> pb.EventsResponse:
        """What happened after the event of that number."""
        return pb.EventsResponse(events=self._chronicle.events.after(after))

    def all_events(self, after: int) -> Iterator[pb.EventStatus]:
        """All events that are kept, from the one after that number on."""
        while page := self._chronicle.events.after(after):
            yield from page
            after = page[-1].number

    def _where_it_stands(self, coordinator: Coordinator, now: float) -> pb.StatusResponse:
        phase = coordinator.open
        return pb.StatusResponse(
            state=coordinator.state.value,
            round=coordinator.round,
            rounds=coordinator.config.rounds,
            phase=PHASE_NAMES[phase.key.phase] if phase is not None else "",
            waiting_for=coordinator.waiting_for(now),
            paused=bool(coordinator.paused_by),
            serving_s=now - self._started,
            deadline_s=max(0.0, phase.deadline - now) if phase is not None else None,
            min_clients=coordinator.config.min_clients,
            upstream=coordinator.pace.upstream,
            participants=coordinator.participants,
            answered=sorted(phase.uploads) if phase is not None else (),
            clients=[
                _client_status(client, coordinator, now)
                for _, client in sorted(coordinator.attendance.clients.items())
            ],
        )


def _ledger_row(row: tuple[LedgerKey, ByteCount]) -> pb.LedgerRow:
    key, count = row
    return pb.LedgerRow(client=key.client, round=key.round, phase=key.phase, bytes=_totals([count]))


def _client_status(client: ClientRecord, coordinator: Coordinator, now: float) -> pb.ClientStatus:
    state, phase = _state(client, coordinator), coordinator.open
    working = state == "working" and client.activity != WAITING
    why = phase.failed[client.name] if phase is not None and state == "failed" else ""
    return pb.ClientStatus(
        name=client.name,
        alive=client.alive,
        ready=state == "waiting",
        state=state,
        activity=client.activity if working else why,
        progress=client.progress if working else 0.0,
        last_seen_s=max(0.0, now - client.last_seen),
    )


def _published(model: WrittenModel, scored: pb.RoundStatus | None) -> pb.PublishedModel:
    """A model and how good it is, as far as the round after which it was written tells."""
    told = pb.PublishedModel(sha256=model.sha256, round=model.round, published=model.published)
    if scored is not None and "published" in scored.accuracy:
        told.accuracy = scored.accuracy["published"]
    validation = best_by_candidate(scored.validation) if scored is not None else {}
    if model.published in validation:
        told.validation = validation[model.published]
    return told


def _state(client: ClientRecord, coordinator: Coordinator) -> str:
    phase = coordinator.open
    if not client.alive:
        return "left" if client.left else "gone"
    if phase is not None and client.name in phase.failed:
        return "failed"
    if phase is not None and client.name in phase.uploads:
        return "answered"
    asked = phase is not None and client.name in coordinator.participants
    return "waiting" if client.activity == WAITING and not asked else "working"


def _totals(counts: Iterable[ByteCount]) -> pb.ByteTotals:
    total = ByteCount()
    for count in counts:
        total.add(count)
    return pb.ByteTotals(**asdict(total))
