"""Trees of tiny runs: coordinators, relays between them, and sites that compute what real ones do, in numpy."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fkd_common.choices import Fusion
from fkd_common.codecs.statistics import pack_moments, pack_statistics, unpack_statistics
from fkd_common.codecs.student import pack_update, unpack_model
from fkd_common.config import RunConfig
from fkd_common.errors import UnreachableError
from fkd_common.method.moments import (
    accumulate,
    apply_moments,
    centre,
    moment_targets,
    moment_vector,
    pack_symmetric,
)
from fkd_common.method.privacy import clip_features, clip_rows, noised_moments
from fkd_common.method.refinement import gradient, likelihood_residual
from fkd_common.method.residuals import Standardiser
from fkd_common.method.student_forward import student_responses
from fkd_common.method.student_layout import TensorSpec, initial_student, student_layout
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.rpc import Method
from fkd_common.tensors import Tensors, decode, encode
from fkd_relay.learn import UPSTREAM_RUN
from fkd_relay.link import Ends, UpstreamLink
from fkd_relay.method import RelayFkdRtm
from fkd_relay.pace import UpstreamPace
from fkd_relay.start import own_config
from fkd_server.coordinator import Coordinator
from fkd_server.run_state import Event, PhaseKey, Position
from fkd_server.service import CoordinatorService, RunIdentity
from fkd_server.settings import ServerSettings
from fkd_server.spool import UploadSpool
from fkd_server.store import RunDescription, RunStore
from fkd_server.validation import UploadRules

from ..server.tiny import MOMENTS, RELAYS, RESIDUALS, STUDENT, VOTES, Clock, Site, TinyRun, inline, tiny_run

CLASSES = ("cat", "dog", "owl")
ANCHORS = np.random.default_rng(5).normal(size=(12, 3)).astype(np.float32)
SIZES = {"a": 40, "b": 90, "c": 7, "d": 55, "e": 23}
STUDENTS: dict[str, Any] = {"rounds": 2, "correction": (), "personal": ()}
WHOLE: dict[str, Any] = {
    "rounds": 2, "correction": ("anchors", "moments"), "residual_every": 1, "correction_at_start": True,
    "refine_steps": 2, "personal": ("prior",), "hidden": (4, 2), "dropout": (0.0, 0.0), "min_clients": 1,
}  # fmt: skip
"""Every phase there is, in rounds 0 to 2."""


class Wire:
    """Calls to whichever coordinator stands at its end; cut, it says that nobody answers."""

    def __init__(self, to: Callable[[Method, bytes], bytes]) -> None:
        self.to = to
        self.cut = False
        self.sent: list[bytes] = []
        self.cut_after: set[str] = set()
        """Calls whose answer is lost on the way."""

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        if self.cut:
            raise UnreachableError("nobody answers")
        self.sent.append(request)
        answer = self.to(method, request)
        if method.name in self.cut_after:
            self.cut_after.remove(method.name)
            raise UnreachableError("the answer is lost")
        return answer

    def close(self) -> None:
        self.cut = True

    def line(self) -> Line:
        """A channel over it."""
        return Line(self)


class Line:
    """One session's channel over a wire: closed, it is done for, and the wire is not."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._closed = wire, False

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        if self._closed:
            raise UnreachableError("the connection was closed")
        return self._wire.call(method, request, timeout_s)

    def close(self) -> None:
        self._closed = True


@dataclass
class Relay:
    """A relay without a network of its own."""

    folder: Path
    method: RelayFkdRtm
    coordinator: Coordinator
    service: CoordinatorService
    store: RunStore
    pace: UpstreamPace
    link: UpstreamLink
    wire: Wire
    clock: Clock
    events: list[Event] = field(default_factory=list)

    def answer(self, method: Method, request: bytes) -> bytes:
        response = self.service.handle(method, request)
        assert response is not None
        return response

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event.fields for event in self.events if event.name == name]

    def step(self) -> None:
        """What its clients have sent counts, and the link does what is due."""
        self.service.tick()
        self.link.step()


def hub(folder: Path, **changes: Any) -> TinyRun:
    """A coordinator that nobody is above of."""
    folder.mkdir(parents=True, exist_ok=True)
    run = tiny_run(folder, anchors=ANCHORS, classes=CLASSES, **{**WHOLE, **changes})
    anchors = run.store.blobs.put(encode({"embeddings": ANCHORS}))
    artifacts = {**run.service.identity.artifacts, "anchors": anchors}
    run.service.identity = replace(run.service.identity, artifacts=artifacts)
    return run


def relay(
    folder: Path,
    above: TinyRun | Relay,
    name: str = "r",
    min_clients: int = 1,
    patience_s: float = 3600.0,
    **own: Any,
) -> Relay:
    """A relay in a folder, or, called again, the same after its process died."""
    folder.mkdir(parents=True, exist_ok=True)
    clock, events, wire = Clock(), list[Event](), Wire(above.answer)
    identity = above.service.identity
    store = RunStore.open(folder)
    began = store.description()
    if began is None:
        blobs = {
            name: store.blobs.put(above.store.blobs.read(item.sha256))
            for name, item in identity.artifacts.items()
        }
        config = above.method.config.model_dump(mode="json")
        began = RunDescription(folder.name, config, {UPSTREAM_RUN: identity.run_id}, CLASSES, **blobs)
    config = RunConfig(**began.config)
    keys = {"min_clients": min_clients, "min_cohort": 1, **own}
    of_its_own = own_config(ServerSettings(upstream="hub:1", **keys), config)
    method = RelayFkdRtm(config, CLASSES, ANCHORS, began.extractor.sha256, store.blobs, store.uploads)
    method.to_fold_as(name, of_its_own.min_cohort)
    pace = UpstreamPace("hub:1", method.phases)
    coordinator = Coordinator(of_its_own, method, store, events.append, pace=pace)
    if store.description() is None:
        store.begin(began, Position(method=method.snapshot()))
    else:
        at = store.position()
        waiting = store.uploads_for(PhaseKey(at.round, at.open.phase)) if at.open else {}
        coordinator.resume(at, store.clients(), waiting, clock.now)
    artifacts = {"extractor": began.extractor, "anchors": began.anchors}
    spool, rules = UploadSpool(folder / "spool"), UploadRules.of(method)
    service = CoordinatorService(
        RunIdentity(folder.name, CLASSES, artifacts), coordinator, method, rules, store, spool, clock, RELAYS
    )
    link = UpstreamLink(
        Ends(service, method, pace, store, events.append, identity.run_id, name, patience_s), wire.line
    )
    return Relay(folder, method, coordinator, service, store, pace, link, wire, clock, events)


class HandSite(Site):
    """A site that uploads what a test gives it, at a coordinator of any name."""

    def key(self, round_number: int, phase: int, run_id: str = "") -> types.TaskKey:
        return super().key(round_number, phase, run_id or self.told.run_id)


class DataSite(Site):
    """A site with samples: what it uploads is what a client computes, but for its training, which is a random step."""

    def __init__(
        self, name: str, at: TinyRun | Relay, n: int | None = None, lacks: Iterable[int] = ()
    ) -> None:
        super().__init__(name, at.answer)
        self.config = RunConfig(**json.loads(self.told.config_json))
        self.done: list[tuple[int, int]] = []
        rng = self.rng()
        self.n = SIZES[name] if n is None else n
        self.r = float(rng.uniform(0.05, 1.0))
        self.h = rng.normal(size=(self.n, 3)).astype(np.float32)
        kept = [c for c in range(len(CLASSES)) if c not in lacks]
        self.labels = rng.choice(kept, size=self.n)
        self.num_validation = max(1, self.n // 9)

    def rng(self, *more: int) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(self.name.encode()), *more])

    def do(self) -> bool:
        """The task at hand; whether there was one."""
        answer = self.poll()
        if not answer.HasField("task"):
            return False
        task, phase = answer.task, answer.task.key.phase
        self.done.append((task.key.round, phase))
        if phase == STUDENT:
            self.submit(task, "SubmitStudent", self.trained(task), reliability=self.r)
        elif phase == RESIDUALS:
            by_class = self.config.fusion is Fusion.CLASS_AWARE
            counts = np.bincount(self.labels, minlength=len(CLASSES)).tolist() if by_class else []
            self.submit(
                task, "SubmitResiduals", self.packed({"residuals": self.residuals()}), class_counts=counts
            )
        elif phase == MOMENTS:
            self.submit(task, "SubmitMoments", self.moments(task))
        elif phase in REFINE_PHASES:
            self.submit(task, "SubmitGradient", self.packed({"G": self.gradient(task)}))
        elif phase == VOTES:
            votes = [pb.Vote(candidate=name, correct=self.votes(name)) for name in self.candidates(task)]
            self.call("SubmitVotes", key=task.key, votes=votes, num_validation=self.num_validation)
        else:
            self.finish(task)
        return True

    def submit(self, task: pb.Task, name: str, tensors: Any, **fields: Any) -> None:
        self.call(name, key=task.key, upload=inline(encode(tensors)), num_samples=self.n, **fields)

    def packed(self, tensors: Tensors) -> Any:
        return pack_statistics(tensors, self.config.statistics_in_force)

    def finish(self, task: pb.Task) -> None:
        told = {}
        if self.config.report_personal:
            told = {"personal_correct": self.votes("personal"), "num_validation": self.num_validation}
        self.call("FinishTask", key=task.key, **told)

    # -- what it computes --

    def student(self, task: pb.Task) -> Tensors:
        config, C = self.config, len(CLASSES)
        if task.key.round == 0:
            return initial_student(config.seed, 3, config.hidden, C, config.norm)
        (reference,) = (item for item in task.inputs if item.name == "student")
        layout = student_layout(3, config.hidden, C, config.norm)
        return unpack_model(decode(self.fetch(reference, task.key)), layout, config.model_codec)

    def trained(self, task: pb.Task) -> Any:
        start, rng = self.student(task), self.rng(task.key.round)
        state = {}
        for name, w in start.items():
            if name.endswith("num_batches_tracked"):
                state[name] = w + 1
            elif name.endswith("running_var"):
                state[name] = np.asarray(w * rng.uniform(0.5, 2.0), np.float32)
            else:
                state[name] = np.asarray(w + 0.3 * rng.normal(size=w.shape), np.float32)
        return pack_update(state, start, self.config.update_codec, self.rng(task.key.round, STUDENT))

    def residuals(self) -> Any:
        values = self.rng(1).uniform(-1, 1, size=(len(ANCHORS), len(CLASSES))).astype(np.float32)
        values[:, np.bincount(self.labels, minlength=len(CLASSES)) == 0] = 0.0
        return values

    def features(self, task: pb.Task) -> tuple[Any, Any]:
        answers = student_responses(self.student(task), self.h, self.config.norm)
        which = self.config.moment_features_in(task.key.round)
        z = moment_vector(answers.hidden, Standardiser.of(ANCHORS).apply(self.h), which)
        return z, answers.logits if task.key.round else np.zeros((self.n, len(CLASSES)), np.float32)

    def moments(self, task: pb.Task) -> Any:
        (z, logits), config = self.features(task), self.config
        residual = moment_targets(self.labels, None, len(CLASSES), config.kappa, 0.0) - centre(logits)
        sums = accumulate(clip_features(z, 3, config.feature_clip), clip_rows(residual, config.target_clip))
        block = 4 if task.embedding_block_known else 0
        if config.noise_multiplier > 0:
            rng, last = self.rng(task.key.round, MOMENTS), not block
            A, B = noised_moments(pack_symmetric(sums.A, block), sums.B, config, rng, ends_with_n=last)
            return {"A": A.astype(np.float32), "B": B.astype(np.float32)}
        left_out = sums.A.diagonal()[len(sums.A) - block :].astype(np.float32) if block else np.empty(0)
        A = pack_symmetric(sums.A, block).astype(np.float32)
        codec = self.config.statistics_in_force
        return pack_moments(A, sums.B.astype(np.float32), left_out, codec, self.rng(task.key.round, MOMENTS))

    def gradient(self, task: pb.Task) -> Any:
        z, logits = self.features(task)
        (reference,) = (item for item in task.inputs if item.name == "solution")
        layout = {"V": TensorSpec((z.shape[1], len(CLASSES)), "float32")}
        packed = decode(self.fetch(reference, task.key))
        V = unpack_statistics(packed, layout, self.config.statistics_in_force)["V"]
        return gradient(z, likelihood_residual(logits, apply_moments(z, V), self.labels))

    def candidates(self, task: pb.Task) -> list[str]:
        had = {item.name for item in task.inputs}
        names = ["student", *(["anchors"] if "fused_residuals" in had else [])]
        if "moment_correction" in had:
            names += [f"moments.{i}" for i in range(len(self.config.lambda_grid))]
        return names + (["moments.refined"] if "refined_moments" in had else [])

    def votes(self, candidate: str) -> int:
        return int(self.rng(zlib.crc32(candidate.encode())).integers(0, self.num_validation + 1))


def again(node: Relay, above: TinyRun | Relay, *below: DataSite, **own: Any) -> Relay:
    """A relay dies without a word, and another process takes its place; its sites talk to that one."""
    node.wire.cut = True
    taken = relay(
        node.folder,
        above,
        node.link._ends.name,
        **{"min_clients": node.coordinator.config.min_clients, **own},
    )
    for site in below:
        site.answer = taken.answer
    return taken


def flat(folder: Path, names: str, **changes: Any) -> TinyRun:
    """The same sites under one coordinator, to the end."""
    run = hub(folder, **{"min_clients": len(names), **changes})
    play([run], [], [DataSite(name, run) for name in names])
    return run


def play(
    hubs: list[TinyRun], relays: list[Relay], sites: list[DataSite], until: Callable[[], bool] = lambda: False
) -> None:
    """Everybody does what is asked of them until the run is over, or until something happens."""
    for site in sites:
        site.poll()
    for _ in range(400):
        if all(node.coordinator.over for node in (*hubs, *relays)):
            return
        for node in (*hubs, *relays):
            node.clock.now += 0.01
        for each in (*relays, *sites):
            if until():
                return
            if isinstance(each, DataSite):
                each.do()
            elif not each.coordinator.over:
                each.step()
    raise AssertionError(
        f"stuck: {[(*map(str, (n.coordinator.round, n.service.waiting_for())),) for n in (*hubs, *relays)]}"
    )


def in_phase(node: TinyRun | Relay, round_number: int, phase: int) -> bool:
    key = node.coordinator.open.key if node.coordinator.open else None
    return key is not None and (key.round, key.phase) == (round_number, phase)


def register(run: TinyRun, name: str, *, relay: bool) -> Any:
    class Kind(HandSite):
        def call(self, method: str, **fields: Any) -> Any:
            return super().call(method, **({**fields, "relay": relay} if method == "Register" else fields))

    return Kind(name, run.answer)


def pair(folder: Path, **changes: Any) -> tuple[TinyRun, Relay, list[DataSite]]:
    """A relay of a and b, and c at the hub itself."""
    above = hub(folder / "hub", **{"min_clients": 2, **changes})
    below = relay(folder / "r", above, "r", 2)
    return above, below, [DataSite("a", below), DataSite("b", below), DataSite("c", above)]


def steps(node: Relay, times: int = 4) -> None:
    for _ in range(times):
        node.step()
