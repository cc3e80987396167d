"""Secure sums: a client that answers any step with anything, and a coordinator that shows a client anything."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import numpy as np

from fkd_client.secure_sum import Participant
from fkd_common.errors import FkdError
from fkd_common.secure_sum.roster import Roster, as_tensor
from fkd_common.secure_sum.sharing import ThresholdRule
from fkd_common.secure_sum.steps import Summed
from fkd_common.tensors import Tensors, decode, encode
from tests.secure_sum.secure_sites import SecureSite
from tests.server.tiny import filled, inline, tiny_run

from .framing import join, split
from .target import Target, demand

NAMES = ("a", "b", "c")
RULE = ThresholdRule(2 / 3)
STEPS = 4


def secure_upload(data: bytes, folder: Path) -> None:
    """Client a's answers to the four steps of a student sum; where an input says nothing, the honest one."""
    run = tiny_run(folder, secure_aggregation=True, min_cohort=2, min_clients=3)
    sites = {name: SecureSite(name, run.answer, filled(run.method, 1.0), 10, 0.5) for name in NAMES}
    answers = split(data, STEPS)
    for site in sites.values():
        site.poll()
    for answer in answers:
        for name, site in sites.items():
            told = site.poll()
            if not told.HasField("task"):
                continue
            with suppress(FkdError):
                blob = answer if answer and name == "a" else encode(site.answer_to(told.task))
                site.call("SubmitSecure", key=told.task.key, upload=inline(blob))
        if run.coordinator.open is not None and run.coordinator.open.uploads:
            run.clock.now += 61.0  # whoever was refused is not waited for
            for site in sites.values():
                with suppress(FkdError):
                    site.call("Heartbeat")
        run.service.tick()
    student = decode((run.blobs / f"{run.method.artifacts()['student'].sha256}.safetensors").read_bytes())
    demand(all(np.isfinite(array).all() for array in student.values()), "the average is finite")


def secure_upload_seeds(folder: Path) -> dict[str, bytes]:
    keys = encode(Participant("a", Summed.STUDENT, RULE).keys())
    shares = encode({name: np.zeros(60, np.uint8) for name in ("b", "c")})
    layout = filled(
        tiny_run(folder / "run", secure_aggregation=True, min_cohort=2, min_clients=3).method, 1.0
    )
    masked = encode(
        {**{n: np.ones(a.shape, np.uint64) for n, a in layout.items()}, "weight": np.ones(1, np.uint64)}
    )
    reveal = encode({f"seed/{name}": np.zeros(16, np.uint8) for name in NAMES})
    return {
        "honest": join(b"", b"", b"", b""), "keys": join(keys, b"", b"", b""), "shares": join(b"", shares, b"", b""),
        "masked": join(b"", b"", masked, b""), "reveal": join(b"", b"", b"", reveal),
    }  # fmt: skip


def secure_task(data: bytes, folder: Path) -> None:
    """What a coordinator shows client a at the steps: a roster, an inbox, a list of who delivered."""
    roster, inbox, delivered = split(data, 3)
    peers = {name: Participant(name, Summed.STUDENT, RULE) for name in NAMES}
    own = peers["a"]
    rows = decode(roster)
    honest = Roster.of(Summed.STUDENT, {name: _row(peer) for name, peer in peers.items()}, RULE).tensors()
    for name in rows.keys() & honest.keys():  # zeros stand for the keys of a process that is not there yet
        if not rows[name].any():
            rows[name] = honest[name]
    own.shares(rows)
    received: Tensors = decode(inbox)
    for name in received.keys() & peers.keys() - {"a"}:
        if not received[name].any():
            with suppress(FkdError):
                received[name] = peers[name].shares(rows)["a"]
    masked = own.masked({"w": np.ones(3)}, received)
    demand({k: v.dtype.name for k, v in masked.items()} == {"w": "uint64"}, "a summand is hidden")
    names = delivered.decode(errors="replace").split(",")
    revealed = own.revealed(names)
    demand(len(names) >= RULE.of(len(rows)), "below the threshold nothing is revealed")
    both = {name.partition("/")[2] for name in revealed if name.startswith("seed/")}
    demand(
        not both & {n.partition("/")[2] for n in revealed if n.startswith("key/")},
        "never both shares of a peer",
    )


def _row(peer: Participant) -> np.ndarray:
    return as_tensor(b"".join(array.tobytes() for array in peer.keys().values()))


def secure_task_seeds(folder: Path) -> dict[str, bytes]:
    rows = {name: np.zeros(96, np.uint8) for name in NAMES}
    inbox = {name: np.zeros(60, np.uint8) for name in NAMES[1:]}
    return {
        "all": join(encode(rows), encode(inbox), b"a,b,c"),
        "two": join(encode(rows), encode({"b": inbox["b"]}), b"a,b"),
        "low_order": join(encode({**rows, "b": np.arange(96, dtype=np.uint8)}), encode(inbox), b"a,b,c"),
    }


def mutate(data: bytes, max_size: int, seed: int, parts: int = 3) -> bytes:
    """Change one value, name, shape or type of one part's tensors."""
    rng = random.Random(seed)
    pieces = split(data, parts)
    at = rng.randrange(parts)
    try:
        tensors: Tensors = {name: np.array(array) for name, array in decode(pieces[at]).items()}
    except FkdError:
        pieces[at] = rng.choice((b"", b"a", b"a,b,c", b"a,a,b", b"b,c", b"a,b,x"))
        return join(*pieces)[:max_size]
    name = rng.choice([*tensors, "a"])
    array = tensors.pop(name, np.zeros(60, np.uint8))
    choice = rng.random()
    if choice < 0.25:
        tensors[rng.choice((*NAMES, "d", "", "x/y", "seed/a", "key/b", "weight"))] = array
    elif choice < 0.4:
        tensors[name] = array.astype(rng.choice(("uint64", "float32", "uint8", "int8")))
    elif choice < 0.55:
        tensors[name] = array.reshape(1, *array.shape) if rng.random() < 0.5 else array.ravel()[:-1]
    elif choice < 0.9 and array.size:
        with suppress(ValueError, OverflowError):  # a value its type does not hold
            array.flat[rng.randrange(array.size)] = rng.randrange(256)
        tensors[name] = array
    pieces[at] = encode(tensors)
    return join(*pieces)[:max_size]


def mutate_upload(data: bytes, max_size: int, seed: int) -> bytes:
    """:func:`mutate` for four steps."""
    return mutate(data, max_size, seed, STEPS)


TARGETS = (
    Target("secure_upload", secure_upload, secure_upload_seeds, mutate_upload),
    Target("secure_task", secure_task, secure_task_seeds, mutate),
)
