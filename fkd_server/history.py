"""What the closed rounds of a run say of its rounds and clients, kept at hand; decides and writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fkd_common.pb import admin_pb2 as pb
from fkd_server.method.federated_method import Json


@dataclass
class ClientTally:
    """What rounds that are over say of one client."""

    missed: int = 0
    students: int = 0
    """Students it sent, in the clear or under masks; of another method, its exchanges."""
    samples: int = 0
    reliability: float = 0.0
    weight: float = 0.0
    class_counts: tuple[int, ...] = ()


class History:
    """Rounds that are over, in order, and what they add up to for every client; safe to use from several threads."""

    def __init__(self) -> None:
        self._rounds: list[pb.RoundStatus] = []
        self._clients: dict[str, ClientTally] = {}
        self._lock = threading.Lock()

    def add(self, record: Mapping[str, Any], accuracy: Mapping[str, Json] | None = None) -> None:
        """A round is over.

        Args:
            record: As in ``rounds.jsonl``.
            accuracy: By candidate, if it is known already.
        """
        phases = record["phases"]
        with self._lock:
            self._rounds.append(_round_status(record))
            for summary in phases.values():
                self._count_missing(summary)
            self._count_students(_training(phases))
            for client, counts in phases.get("moments", {}).get("class_counts", {}).items():
                self._tally(client).class_counts = tuple(counts)
        if accuracy:
            self.score(record["round"], accuracy)

    def score(self, round_number: int, accuracy: Mapping[str, Any]) -> None:
        """The accuracies after a round are known."""
        with self._lock:
            for status in self._rounds:
                if status.round == round_number:
                    scores = {key: value for key, value in accuracy.items() if isinstance(value, float)}
                    status.accuracy.update(scores)
                    recall = accuracy.get("recall") or ()
                    status.recall[:] = [-1.0 if value is None else value for value in recall]

    def rounds(self, first: int, most: int) -> list[pb.RoundStatus]:
        """At most so many rounds, from the one with that number on."""
        with self._lock:
            chosen = [status for status in self._rounds if status.round >= first][:most]
            return [_copy(status) for status in chosen]

    def round(self, number: int) -> pb.RoundStatus | None:
        """What happened in a round that is over."""
        found = self.rounds(number, 1)
        return found[0] if found and found[0].round == number else None

    def last_scored(self) -> pb.RoundStatus | None:
        """The last round with an accuracy or a vote."""
        with self._lock:
            scored = (status for status in reversed(self._rounds) if status.accuracy or status.validation)
            found = next(scored, None)
            return None if found is None else _copy(found)

    def count(self) -> int:
        """Rounds that are over."""
        with self._lock:
            return len(self._rounds)

    def client(self, name: str) -> ClientTally:
        """What is known of a client; do not change it."""
        with self._lock:
            return self._clients.get(name, ClientTally())

    def _tally(self, client: str) -> ClientTally:
        return self._clients.setdefault(client, ClientTally())

    def _count_missing(self, summary: Mapping[str, Any]) -> None:
        for client in {*summary.get("missing", ()), *summary.get("failed", ())}:
            self._tally(client).missed += 1

    def _count_students(self, summary: Mapping[str, Any] | None) -> None:
        if summary is None:
            return
        for tally in self._clients.values():
            tally.weight = 0.0
        for client in summary["returned"]:
            self._tally(client).students += 1
        for field in ("samples", "reliability", "weights"):
            for client, value in summary.get(field, {}).items():
                setattr(self._tally(client), "weight" if field == "weights" else field, value)


def best_by_candidate(validation: Mapping[str, float]) -> dict[str, float]:
    """By candidate: of those that a vote numbers, such as moments.0, the best, which alone may be published."""
    best: dict[str, float] = {}
    for name, value in validation.items():
        candidate = name.partition(".")[0]
        best[candidate] = max(value, best.get(candidate, value))
    return best


def _training(phases: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The phase that a round's local training ends in."""
    training: Mapping[str, Any] | None = phases.get("student", phases.get("exchange"))
    return training


def _round_status(record: Mapping[str, Any]) -> pb.RoundStatus:
    phases = record["phases"]
    votes, personal, training = phases.get("votes", {}), phases.get("personal", {}), _training(phases) or {}
    return pb.RoundStatus(
        round=record["round"],
        seconds=record["seconds"],
        cohort=record["cohort"],
        phases=[_phase_status(name, summary) for name, summary in phases.items()],
        validation={**votes.get("validation_accuracy", {}), **personal.get("validation_accuracy", {})},
        published=votes.get("published", "").split(".")[0],
        weights=training.get("weights", {}),
    )


def _phase_status(name: str, summary: Mapping[str, Any]) -> pb.PhaseStatus:
    return pb.PhaseStatus(
        phase=name,
        seconds=summary["seconds"],
        returned=summary["returned"],
        missing=summary["missing"],
        failed=summary["failed"],
        skipped=summary.get("skipped", ""),
        excluded=summary.get("excluded", {}),
    )


def _copy(status: pb.RoundStatus) -> pb.RoundStatus:
    copied = pb.RoundStatus()
    copied.CopyFrom(status)
    return copied
