"""Made-up runs as the messages of admin.proto, for the page to show; serves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fkd_common.pb import admin_pb2 as pb

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PHASES = {"student": 4.1, "residuals": 1.2, "moments": 0.9, "votes": 0.3}
STATES = ("working", "answered", "waiting", "failed", "gone", "left")
SHARES = {"votes": 0.05, "student": 0.6, "moments": 0.15, "residuals": 0.1, "setup": 0.1}
"""Of all bytes, by phase."""
VOTE_EVERY = 3
MB = 1_000_000


def running(
    clients: int = 6,
    round_number: int = 7,
    rounds: int = 30,
    *,
    names: Iterable[str] = (),
    classes: tuple[str, ...] = CLASSES,
) -> pb.StatusResponse:
    """A run in the middle of a student phase, every client in another state."""
    sites = [*names, *(f"site-{number:03d}" for number in range(clients))][:clients]
    status = pb.StatusResponse(
        run_id="20261130-101500-9f3c",
        state="running",
        round=round_number,
        rounds=rounds,
        phase="student",
        waiting_for=f"round {round_number}, student: 2 of {clients} in, waiting for {sites[0]}, 55 s to the deadline",
        serving_s=421.5,
        deadline_s=55.0,
        min_clients=3,
        classes=classes,
        participants=sites[:4],
        answered=sites[1:3],
        rounds_done=round_number - 1,
        config_sha256="3b" * 32,
        version="0.1.0",
        model=pb.PublishedModel(sha256="8e" * 32, round=6, published="moments"),
    )
    for place, name in enumerate(sites):
        state = STATES[place % len(STATES)]
        up, down = (3 + place % 5) * MB, (7 + place % 3) * MB
        status.clients.append(
            pb.ClientStatus(
                name=name,
                alive=state not in ("gone", "left"),
                ready=state == "waiting",
                state=state,
                activity="distils the teacher" if state == "working" else "",
                progress=0.45 if state == "working" else 0.0,
                last_seen_s=95.0 if state in ("gone", "left") else 0.4,
                uploads=12 + place % 4,
                missed=place % 3,
                samples=1000 + 37 * place,
                reliability=0.8 + 0.01 * (place % 9),
                weight=1 / clients,
                fedavg_bytes=12 * 45 * MB,
                bytes=pb.ByteTotals(
                    calls=300,
                    payload_up=up,
                    payload_down=down,
                    message_up=up + 9000,
                    message_down=down + 9000,
                ),
                class_counts=[_samples(place, label) for label in range(len(classes))],
            )
        )
        status.fedavg_bytes += 12 * 45 * MB
        status.bytes.payload_up += up
        status.bytes.payload_down += down
        status.bytes.message_up += up + 9000
        status.bytes.message_down += down + 9000
    for phase, share in SHARES.items():
        sums = status.bytes_by_phase[phase]
        sums.payload_up = int(share * status.bytes.payload_up)
        sums.payload_down = int(share * status.bytes.payload_down)
    return status


def gathering() -> pb.StatusResponse:
    """A run that nobody has joined yet."""
    return pb.StatusResponse(
        run_id="20261130-101500-9f3c",
        state="gathering",
        round=-1,
        rounds=30,
        waiting_for="0 of 3 clients ready",
        serving_s=2.0,
        min_clients=3,
        classes=CLASSES,
        config_sha256="3b" * 32,
        version="0.1.0",
        bytes=pb.ByteTotals(),
    )


def over(state: str) -> pb.StatusResponse:
    """A run that has ended."""
    status = running()
    status.state, status.phase = state, ""
    status.waiting_for = f"run {state}: " + (
        "30 rounds done" if state == "completed" else "stopped by operator alice"
    )
    status.ClearField("deadline_s")
    del status.participants[:], status.answered[:]
    for client in status.clients:
        client.alive, client.ready, client.state, client.activity = False, False, "left", ""
    return status


def rounds(status: pb.StatusResponse) -> list[pb.RoundStatus]:
    """Those that a run's status says are over."""
    sites = [client.name for client in status.clients]
    return [closed(number, sites) for number in range(1, status.rounds_done + 1)]


def closed(number: int, sites: list[str]) -> pb.RoundStatus:
    """A round that is over; every third has a vote."""
    voted = number % VOTE_EVERY == 0
    phases = {name: seconds for name, seconds in PHASES.items() if voted or name == "student"}
    student = 0.62 - 0.4 * math.exp(-number / 6) + 0.03 * math.sin(3 * number)
    scores = {
        "student": student,
        "anchors": student - 0.02 + 0.01 * math.sin(number),
        "moments": 0.71 + 0.002 * number,
    }
    status = pb.RoundStatus(
        round=number,
        seconds=sum(phases.values()) * (1 + 0.1 * math.sin(number)) + 0.4,
        cohort=sites[:4],
        accuracy=scores if number >= VOTE_EVERY else {"student": student},
        weights=dict.fromkeys(sites[:4], 0.25),
        recall=[0.4 + 0.05 * label for label in range(len(CLASSES))],
    )
    for name, seconds in phases.items():
        status.phases.append(
            pb.PhaseStatus(phase=name, seconds=seconds * (1 + 0.1 * math.sin(number)), returned=sites[:3])
        )
    if voted:
        status.published = "moments"
        status.accuracy["published"] = scores["moments"]
        status.validation.update(
            {"student": student - 0.03, "anchors": student - 0.04, "moments.0": 0.64, "moments.1": 0.7}
        )
        status.phases[0].missing.extend(sites[3:4])
    return status


def events(status: pb.StatusResponse) -> list[pb.EventStatus]:
    """What led there."""
    made = [event(1, "serving", detail="address 127.0.0.1:50051")]
    for client in status.clients:
        made.append(event(len(made) + 1, "client_joined", client=client.name))
    for number in range(1, status.rounds_done + 1):
        made.append(event(len(made) + 1, "round_opened", number, detail="cohort site-000 site-001 site-002"))
        made.append(event(len(made) + 1, "phase_closed", number, "student", detail="returned 3, seconds 4.1"))
        if number % VOTE_EVERY == 0:
            made.append(event(len(made) + 1, "client_lost", number, client="site-004", detail="silent_s 8.2"))
        made.append(event(len(made) + 1, "round_closed", number, detail=f"seconds {4 + number / 10}"))
    return made


def event(
    number: int,
    name: str,
    round_number: int | None = None,
    phase: str = "",
    client: str = "",
    detail: str = "",
) -> pb.EventStatus:
    """One event, a second after the one before."""
    time = f"2026-11-30T10:{15 + number // 60:02d}:{number % 60:02d}.000+00:00"
    return pb.EventStatus(
        number=number, time=time, name=name, round=round_number, phase=phase, client=client, detail=detail
    )


def _samples(place: int, label: int) -> int:
    return int(2000 * math.exp(-(((label - place) % 10) ** 2) / 6)) if (label + place) % 4 else 0
