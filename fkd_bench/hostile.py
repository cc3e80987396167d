"""`fkd-bench hostile`: what a share of hostile clients does to every model, under every aggregation; no network.

The real clients' computations, the real validation and the real server half, without sessions and deadlines, which
no attack here concerns. Embeddings and teachers are made once and shared by all cells.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fkd_bench.attacks import Attack, Claim, poisoned_labels, tampered
from fkd_bench.federation import make_federation
from fkd_bench.narrator import Narrator
from fkd_bench.settings import BenchSettings
from fkd_client.embedding import embed_cached
from fkd_client.extractor import load_extractor
from fkd_client.global_model import GlobalModel
from fkd_client.pipeline import Pipeline
from fkd_client.site import Site, anchors_of
from fkd_client.threads import limit_threads
from fkd_common.artifacts import BlobStore
from fkd_common.choices import UNCODED, Aggregation, PersonalKind
from fkd_common.config import RunConfig
from fkd_common.errors import InvalidUploadError
from fkd_common.method.metrics import accuracy
from fkd_common.method.refinement import solutions_by_candidate
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, decode
from fkd_common.typed_text import Listed
from fkd_server.method.federated_method import (
    Participants,
    PhasePlan,
    TaskContent,
    TensorUpload,
    UploadContent,
    VoteUpload,
)
from fkd_server.method.fkd_rtm import FkdRtm
from fkd_server.prepare import PreparedRun, load_prepared, prepare
from fkd_server.validation import Background, UploadRules
from fkd_shards.shard import content_sha256, read_shard

MODELS = ("student", "anchors", "moments", "published")


class HostileSettings(BenchSettings):
    """Settings of the sweep: those of `fkd-bench run`, smaller, and the grid."""

    data: str = "digits"
    """Source of `fkd-shards create`."""
    extractor: str = "pretrain"
    """`pretrain`, `resnet18` or a .safetensors file."""
    partition: str = "dirichlet:1"
    """How the data are divided."""
    public: int = Field(300, ge=0)
    """Labelled public images, for --extractor pretrain."""
    anchors: int = Field(100, ge=2)
    """Unlabelled anchor images."""
    rounds: int = Field(8, ge=1)
    """Rounds of every federation."""
    local_steps: int | None = Field(20, ge=1)
    """Local mini-batches per round."""
    clients_per_round: float = Field(1.0, gt=0, le=1)
    """Everybody takes part in every round."""
    trim_fraction: float = Field(0.3, ge=0, lt=0.5)
    """As many at each end as there are hostile clients at most."""
    personal: Listed[PersonalKind] = ()
    """Personal models stay at home: no hostile upload reaches them but through the global model."""
    attacks: Listed[Attack] = tuple(Attack)
    """Kinds of hostile clients."""
    hostile_shares: Listed[float] = (0.1, 0.2, 0.3)
    """Shares of the clients that are hostile."""
    aggregations: Listed[Aggregation] = tuple(Aggregation)
    """Rules compared."""


@dataclass(frozen=True)
class Cell:
    """One federation of the sweep."""

    attack: Attack | None
    hostile: int
    aggregation: Aggregation


@dataclass(frozen=True)
class Outcome:
    """What a federation of the sweep ended with."""

    cell: Cell
    accuracy: dict[str, float]
    """On the test set, by model, 0...1."""
    published: str
    refused: int
    """Uploads of hostile clients that validation refused."""
    excluded: int
    """Uploads that aggregation left out or shortened."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "cell": dataclasses.asdict(self.cell)}


class World:
    """What all federations of a sweep share: artifacts, honest and poisoned sites, the test set."""

    def __init__(self, settings: HostileSettings, narrator: Narrator) -> None:
        limit_threads(settings.threads)
        self.settings = settings
        self.narrator = narrator
        self.federation = make_federation(settings, settings.seed, narrator)
        folder = self.federation.folder
        prepared = folder / "hostile-prepared"
        shards = self.federation.shards
        prepare(
            settings.extractor,
            shards / "anchors",
            shards / "public",
            prepared,
            settings.seed,
            settings.threads,
        )
        self._blobs = BlobStore(folder / "hostile-blobs")
        self.prepared: PreparedRun = load_prepared(prepared, self._blobs)
        self._extractor = load_extractor(self._blobs.read(self.prepared.extractor.sha256))
        test = read_shard(shards / "test")
        assert test.labels is not None
        self.test_labels = test.labels
        self.test_embeddings = embed_cached(
            self.federation.cache, self.prepared.extractor.sha256, self._extractor, test
        )
        self._pipelines: dict[tuple[str, Attack | None], Pipeline] = {}

    def pipeline(self, name: str, attack: Attack | None) -> Pipeline:
        """A client's computations, prepared once; poisoned labels make another teacher."""
        images, embeddings = anchors_of(decode(self._blobs.read(self.prepared.anchors.sha256)))
        shard = read_shard(self.federation.shards / name)
        assert shard.labels is not None
        classes = len(self.prepared.classes)
        labels = poisoned_labels(attack, shard.labels, classes) if attack is not None else None
        kind = attack if labels is not None else None
        if (name, kind) not in self._pipelines:
            if labels is not None:
                shard = dataclasses.replace(
                    shard, labels=labels, sha256=content_sha256(np.asarray(shard.images), labels)
                )
            site = Site(
                name, shard, self._extractor, self.prepared.extractor.sha256, images, embeddings, classes,
                self.federation.cache, "cpu", self.settings.threads,
            )  # fmt: skip
            pipeline = Pipeline(site, self.federation.config)
            pipeline.prepare()
            self._pipelines[name, kind] = pipeline
        return self._pipelines[name, kind]

    def clients(self, cell: Cell) -> dict[str, tuple[Pipeline, Attack | None]]:
        """Everybody of a federation; the last ones are hostile, which is by chance as good as any."""
        names = sorted(self.federation.client_names)
        first_hostile = len(names) - cell.hostile
        attacks = [cell.attack if i >= first_hostile else None for i in range(len(names))]
        return {
            name: (self.pipeline(name, attack), attack) for name, attack in zip(names, attacks, strict=True)
        }


def sweep(settings: HostileSettings, narrator: Narrator) -> list[Outcome]:
    """Every cell of the grid, and every aggregation without hostile clients."""
    world = World(settings, narrator)
    cells = [Cell(None, 0, rule) for rule in settings.aggregations]
    cells += [
        Cell(attack, round(share * settings.clients), rule)
        for attack in settings.attacks
        for share in settings.hostile_shares
        for rule in settings.aggregations
    ]
    outcomes = []
    for i, cell in enumerate(cells, start=1):
        started = time.monotonic()
        outcomes.append(run_cell(world, cell))
        scores = "  ".join(f"{name} {value:.1%}" for name, value in outcomes[-1].accuracy.items())
        what = f"{cell.hostile} x {cell.attack}" if cell.attack else "nobody hostile"
        took = time.monotonic() - started
        narrator.say(f"{i}/{len(cells)}  {what}, {cell.aggregation}:  {scores}  ({took:.1f} s)")
    return outcomes


def run_cell(world: World, cell: Cell) -> Outcome:
    """One federation, from the untrained student to its accuracies."""
    changes = {"aggregation": cell.aggregation, **UNCODED}  # nothing is sent here
    config = world.federation.config.model_copy(update=changes)
    with tempfile.TemporaryDirectory(dir=world.federation.folder) as folder:
        federation = _Federation(world, cell, config, Path(folder))
        for round_number in range(1, config.rounds + 1):
            for plan in federation.method.phases(round_number):
                federation.phase(round_number, plan)
        return federation.outcome()


class _Federation:
    """The server half and its clients, phase by phase."""

    def __init__(self, world: World, cell: Cell, config: RunConfig, folder: Path) -> None:
        prepared = world.prepared
        self._world, self._cell, self._config = world, cell, config
        self._blobs, self._uploads = BlobStore(folder / "blobs"), BlobStore(folder / "uploads")
        self.method = FkdRtm(
            config, prepared.classes, prepared.anchor_embeddings, prepared.extractor.sha256,
            self._blobs, self._uploads,
        )  # fmt: skip
        self._rules = UploadRules.of(self.method)
        self._clients = world.clients(cell)
        self._refused = self._excluded = 0

    def phase(self, round_number: int, plan: PhasePlan) -> None:
        """Ask everybody, or whom the method chooses; validate, aggregate."""
        uploads: dict[str, UploadContent] = {}
        chosen = plan.participants is Participants.CHOSEN
        for name in self.method.chosen(plan.phase) if chosen else self._clients:
            try:
                uploads[name] = self._upload(name, round_number, plan.phase)
            except InvalidUploadError as error:
                if self._clients[name][1] is None:
                    raise
                self._refused += 1
                self._world.narrator.say(f"refused {name}: {error}", style="dim")
        record = self.method.close(plan.phase, uploads)
        for touched in (record.get("excluded"), record.get("clipped")):
            self._excluded += len(touched) if isinstance(touched, dict) else 0
        for upload in uploads.values():
            if isinstance(upload, TensorUpload):
                self._uploads.remove(upload.artifact.sha256)

    def _upload(self, name: str, round_number: int, phase: int) -> UploadContent:
        pipeline, attack = self._clients[name]
        task = self.method.task(phase, name)
        student = self._input(task, "student")
        if phase == types.PHASE_VOTES:
            return VoteUpload(pipeline.votes(self._candidates(pipeline, task)), len(pipeline.y_val))
        tensors: Tensors
        if phase == types.PHASE_STUDENT:
            tensors = dict(pipeline.student(student, round_number))
        elif phase == types.PHASE_RESIDUALS:
            tensors = {"residuals": pipeline.residuals(student)}
        elif phase == types.PHASE_MOMENTS:
            tensors = dict(pipeline.moments(student, block_known=task.embedding_block_known))
        else:
            solution, which = self._input(task, "solution")["V"], self._config.moment_features
            tensors = dict(pipeline.gradient(student, solution, which))
        claim = Claim(tensors, pipeline.num_samples, pipeline.teacher.reliability)
        if attack is not None:
            claim = tampered(attack, phase, claim, student, self._config)
        self._rules.check_counts(claim.num_samples, claim.reliability, (), phase)
        known = Background.of(self.method, round_number, phase, name, claim.num_samples)
        self._rules.check_tensors(phase, claim.tensors, known)
        return TensorUpload(self._uploads.put_tensors(claim.tensors), claim.num_samples, claim.reliability)

    def _candidates(self, pipeline: Pipeline, task: TaskContent) -> dict[str, GlobalModel]:
        fused = self._input(task, "fused_residuals").get("fused_residuals")
        solved = self._input(task, "moment_correction")
        refined = self._input(task, "refined_moments")
        solutions = solutions_by_candidate(solved, refined, self.method.num_moment_features)
        return pipeline.candidate_models(self._input(task, "student"), fused, task.anchor_lambda, solutions)

    def _input(self, task: TaskContent, name: str) -> Tensors:
        artifact = task.inputs.get(name)
        return decode(self._blobs.read(artifact.sha256)) if artifact is not None else {}

    def outcome(self) -> Outcome:
        """Accuracy of every candidate on the test set."""
        parts = self.method.model()
        scores = GlobalModel.of(parts).candidate_logits(self._world.test_embeddings)
        labels = self._world.test_labels
        reached = {name: accuracy(logits, labels) for name, logits in scores.items()}
        published = parts.header.published
        return Outcome(
            self._cell, {**reached, "published": reached[published]}, published, self._refused, self._excluded
        )


def outcomes_table(outcomes: Iterable[Outcome]) -> str:
    """Markdown: a row per attack, share and model, a column per aggregation; accuracies in per cent."""
    listed = list(outcomes)
    rules = list(dict.fromkeys(outcome.cell.aggregation for outcome in listed))
    rows = dict.fromkeys((outcome.cell.attack, outcome.cell.hostile) for outcome in listed)
    lines = [
        "| hostile clients | model | " + " | ".join(rule.value.replace("_", " ") for rule in rules) + " |",
        "|---|---|" + "---:|" * len(rules),
    ]
    by_place = {(o.cell.attack, o.cell.hostile, o.cell.aggregation): o for o in listed}
    for attack, hostile in rows:
        what = f"{hostile} x {attack.value.replace('_', ' ')}" if attack else "none"
        for model in MODELS:
            cells = [
                f"{100 * by_place[attack, hostile, rule].accuracy.get(model, float('nan')):.1f}"
                for rule in rules
            ]
            lines.append(f"| {what if model == MODELS[0] else ''} | {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
