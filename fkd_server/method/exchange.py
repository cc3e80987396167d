"""The server half of every method that is one exchange a round: state as blobs, uploads read one by one.

The arithmetic is the method's own (:class:`fkd_common.exchange_method.ExchangeMethod`); here its state is kept, served
and restored, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.choices import UNCODED
from fkd_common.codecs.networks import NetworkCodecs
from fkd_common.config import RunConfig
from fkd_common.errors import DamagedFileError, InvalidUploadError, MethodError
from fkd_common.exchange_method import ExchangeMethod, Layout, State
from fkd_common.method.residuals import Standardiser
from fkd_common.method.student_layout import TensorSpec, student_layout
from fkd_common.method_registry import check_codecs
from fkd_common.model_file import ExchangeHeader, ExchangeModel, ModelHeader, ModelParts, PublishedModel
from fkd_common.own_code import (
    OwnCode,
    WrongResultError,
    check_aggregate,
    check_groups,
    check_layout,
    check_tensors,
    checked_layout,
    model_layout,
)
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, check_schema
from fkd_server.method.federated_method import (
    BelowQuorum,
    Json,
    Participants,
    PhasePlan,
    TaskContent,
    TensorUpload,
    UploadContent,
    VoteUpload,
)
from fkd_server.method.personal_scores import personal_scores
from fkd_server.method.unpacked import UnpackedOnce
from fkd_server.validation import Background, UploadRules

_NAMED = 4
"""So many tensors are named in a description."""


@dataclass(frozen=True)
class ExchangeState:
    """Where a method stands: its groups as artifacts, never the tensors themselves."""

    groups: Mapping[str, Artifact]
    rounds_done: int = 0
    retired: tuple[Artifact, ...] = ()
    """Groups that the last round replaced: a slow client may still be reading them."""


_STATE = TypeAdapter(ExchangeState)


class Exchange:
    """Turns a method's uploads into its next state; see :class:`FederatedMethod`."""

    def __init__(
        self,
        method: ExchangeMethod,
        classes: tuple[str, ...],
        extractor_sha256: str,
        blobs: BlobStore,
        uploads: BlobStore,
    ) -> None:
        """Start from the method's first state.

        Args:
            method: Whose arithmetic it is.
            classes: Class names in global order.
            extractor_sha256: Hash of the run's extractor.
            blobs: Where groups are kept and served from.
            uploads: Where validated uploads wait.

        Raises:
            MethodError: Here, or of any other function: the method's own code failed.
            UsageError: The run has a codec for networks that this method does not exchange.
        """
        self.method = method
        self.config: RunConfig = method.config
        self.classes = classes
        self.extractor_sha256 = extractor_sha256
        self.anchor_embeddings: NDArray[np.float32] = method.federation.anchor_embeddings
        self.embedding_dim = method.federation.embedding_dim
        self._own = OwnCode(self.config.method, type(method))
        self._blobs = blobs
        self._uploads = uploads
        with self._own.at_work("coded_networks"):
            self._codecs = NetworkCodecs.of(method)
        check_codecs(self.config, self._codecs.of_no_use())
        self._trained = UnpackedOnce(blobs, partial(self._codecs.unpack_group, method.trained_group))
        with self._own.at_work("start"):
            start = method.start()
            check_groups("a state", start)
            packed = self._packed(start)
        self._model_layout = model_layout(start)
        self._check_model(start, 0)
        self.state = ExchangeState({name: blobs.put_tensors(tensors) for name, tensors in packed.items()})

    # -- what a round consists of -----------------------------------------------------------------

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        """One exchange, then personal models when due."""
        if round_number == 0:
            return ()
        with self._own.at_work("everyone", round_number):
            who = Participants.EVERYONE if self.method.everyone(round_number) else Participants.COHORT
        plans = [PhasePlan(types.PHASE_EXCHANGE, who, BelowQuorum.FOLLOW_POLICY)]
        if self.config.is_personal_round(round_number):
            plans.append(
                PhasePlan(types.PHASE_PERSONAL, Participants.EVERYONE, BelowQuorum.SKIP, needs_quorum=False)
            )
        return tuple(plans)

    def chosen(self, phase: int) -> tuple[str, ...]:
        """Nobody is chosen one by one."""
        return ()

    def needed(self, phase: int) -> int:
        """The quorum alone decides."""
        return 0

    def candidates(self) -> list[str]:
        """Nothing is voted on."""
        return []

    def secure_schema(self, phase: int, client: str) -> Mapping[str, TensorSpec] | None:
        """No phase is a secure sum."""
        return None

    def task(self, phase: int, client: str) -> TaskContent:
        """The groups that the method sends this client."""
        with self._own.at_work("broadcast", self.round):
            names = self.method.broadcast(self.round, client)
            if isinstance(names, str):
                raise WrongResultError(f"{names!r}; expected a sequence of names, such as ({names!r},)")
            inputs = {name: self.state.groups[name] for name in names if name in self.state.groups}
            trained = self.method.trained_group
            if phase == types.PHASE_EXCHANGE and self._codecs.codes_uploads and trained not in inputs:
                raise WrongResultError(
                    f"{names!r}; expected {trained!r} too, to which uploads are differences"
                )
        return TaskContent(inputs)

    def artifacts(self) -> dict[str, Artifact]:
        """Nothing beyond a client's own task: groups may be meant for one client alone."""
        return {}

    @property
    def round(self) -> int:
        """The round whose uploads come next."""
        return self.state.rounds_done + 1

    def upload_layout(self, num_samples: int) -> Layout:
        """What the open round takes from a client of n_k samples."""
        return self._layout(self.round, num_samples)

    def _layout(self, round_number: int, num_samples: int) -> Layout:
        with self._own.at_work("upload_layout", round_number):
            return checked_layout(self.method.upload_layout(round_number, num_samples))

    def unpacked_upload(self, packed: Tensors, num_samples: int) -> Tensors:
        """What a client of n_k samples sent in the open round, as it was before the run's codecs.

        Raises:
            InvalidUploadError: It was packed otherwise.
        """
        if not self._codecs.codes_uploads:
            return packed
        start = self._trained.of(self.state.groups[self.method.trained_group])
        return self._codecs.unpack_upload(packed, start, self.upload_layout(num_samples))

    def flaw(self, tensors: Tensors) -> str | None:
        """What the method finds wrong with an upload; None if nothing is."""
        with self._own.at_work("flaw", self.round):
            return self.method.flaw(tensors)

    def sent_by_a_site(self) -> str:
        """See :meth:`FederatedMethod.sent_by_a_site`."""
        rounds = range(1, max(1, self.state.rounds_done) + 1)
        parts = [(what, list(alike)) for what, alike in groupby(rounds, self._sent_in)]
        if len(parts) == 1:
            return f"{parts[0][0]}, every round"
        return "; ".join(
            f"round {alike[0]}{f' to {alike[-1]}' if len(alike) > 1 else ''}: {what}" for what, alike in parts
        )

    def _sent_in(self, round_number: int) -> str:
        """What a site sends in a round."""
        one, two = (self._layout(round_number, num_samples) for num_samples in (1, 2))
        size, more = (sum(spec.num_bytes for spec in layout.values()) for layout in (one, two))
        if not more:
            return "nothing"
        names = ", ".join(f"`{name}`" for name in sorted(one)[:_NAMED]) + (", …" if len(one) > _NAMED else "")
        grows = f" and {more - size:,} more for every further sample" if more > size else ""
        codec = self._codecs.update
        packed = "" if codec is UNCODED["update_codec"] else f", packed as {codec} differences"
        return f"{size:,} bytes{grows} ({names}){packed}"

    # -- closing rounds ---------------------------------------------------------------------------

    def can_count(self, phase: int, upload: UploadContent) -> bool:
        """An upload over no samples has no weight."""
        if isinstance(upload, VoteUpload):
            return upload.num_validation > 0
        return not isinstance(upload, TensorUpload) or upload.num_samples > 0

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        """Fold a round's uploads into the state."""
        if phase == types.PHASE_PERSONAL:
            return personal_scores({n: u for n, u in uploads.items() if isinstance(u, VoteUpload)})
        stored = [
            _StoredUpload(name, upload.num_samples, upload.artifact, self._uploads)
            for name, upload in uploads.items()
            if isinstance(upload, TensorUpload)
        ]
        before = self._groups(self.state.groups)
        with self._own.at_work("aggregate", self.round):
            result = self.method.aggregate(before, stored, self.round)
            check_aggregate(result, self._model_layout)
            changed = {name: tensors for name, tensors in result.groups.items() if tensors}
            packed = self._packed(changed)
        groups = {name: held for name, held in self.state.groups.items() if name not in result.groups}
        self._check_model(self._groups(groups, changed), self.round)
        groups |= {name: self._blobs.put_tensors(tensors) for name, tensors in packed.items()}
        kept = {artifact.sha256 for artifact in groups.values()}
        retired = tuple(old for old in self.state.groups.values() if old.sha256 not in kept)
        self.state = ExchangeState(groups, self.round, retired)
        return {"samples": {upload.client: upload.num_samples for upload in stored}, **result.record}

    def publishes(self, phases: Collection[str]) -> bool:
        """Every exchange ends with a model, where the method has one."""
        return "exchange" in phases

    def snapshot(self) -> dict[str, Json]:
        """See :meth:`FederatedMethod.snapshot`."""
        values: dict[str, Json] = _STATE.dump_python(self.state, mode="json")
        return values

    def restore(self, snapshot: Mapping[str, Json]) -> None:
        """See :meth:`FederatedMethod.restore`."""
        state = _STATE.validate_python(snapshot)
        retired = tuple(artifact for artifact in state.retired if self._blobs.has(artifact.sha256))
        self.state = replace(state, retired=retired)

    def in_use(self) -> set[str]:
        """See :meth:`FederatedMethod.in_use`."""
        return {artifact.sha256 for artifact in (*self.state.groups.values(), *self.state.retired)}

    # -- the result -------------------------------------------------------------------------------

    def model(self) -> PublishedModel | None:
        """The current global model: a student where it is one, so that everything that takes students takes it."""
        with self._own.at_work("global_model", self.state.rounds_done):
            tensors = self.method.global_model(self._groups(self.state.groups))
            if tensors is None:
                return None
            check_tensors("a model", tensors)
        if not self.method.model_is_student:
            header = ExchangeHeader(
                classes=self.classes, config=self.config, extractor_sha256=self.extractor_sha256
            )
            return ExchangeModel(header, tensors)
        student_header = ModelHeader(
            classes=self.classes,
            published="student",
            config=self.config,
            moment_lambda=0.0,
            anchor_lambda=0.0,
            anchor_loo_r2=0.0,
            extractor_sha256=self.extractor_sha256,
        )
        return ModelParts(student_header, tensors, Standardiser.of(self.anchor_embeddings), None, None)

    def _packed(self, groups: State) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        """Groups as they are kept and sent, if what everybody unpacks from them can be computed with."""
        packed = {}
        for name, tensors in groups.items():
            if name in self._codecs.networks:
                check_layout(f"group {name!r}", tensors, self._codecs.networks[name])
            packed[name] = self._codecs.pack_group(name, tensors)
            if packed[name] is not tensors:
                check_tensors(f"group {name!r}", self._codecs.unpack_group(name, dict(packed[name])))
        return packed

    def _groups(self, kept: Mapping[str, Artifact], at_hand: State = MappingProxyType({})) -> State:
        """A state's groups, as everybody unpacks them; those at hand as they are."""
        return _Groups(kept, self._blobs, self._codecs, at_hand)

    def _check_model(self, state: State, round_number: int) -> None:
        """A model that is said to be the run's student has its tensors."""
        with self._own.at_work("global_model", round_number):
            model = self.method.global_model(state) if self.method.model_is_student else None
            if model is not None:
                layout = student_layout(
                    self.embedding_dim, self.config.hidden, len(self.classes), self.config.norm
                )
                check_layout("a student", model, layout)


@dataclass(frozen=True)
class ExchangeRules(UploadRules):
    """What an upload must satisfy: the layout its method asks for, finite values, and the method's own check."""

    method: Exchange

    @classmethod
    def of_exchange(cls, method: Exchange) -> ExchangeRules:
        """Rules of a method's uploads."""
        anchors, d = method.anchor_embeddings.shape
        return cls(method.config, len(method.classes), int(anchors), int(d), 0, method)

    def schema(
        self, phase: int, *, block_known: bool, round_number: int | None = None
    ) -> Mapping[str, TensorSpec]:
        """The largest that the open round takes."""
        return self._schema(phase, self.config.max_samples)

    def unpacked(self, phase: int, packed: Tensors, known: Background) -> Tensors:
        """What a client sent, as it was before the run's codecs."""
        try:
            return self.method.unpacked_upload(packed, known.num_samples)
        except MethodError as error:
            raise InvalidUploadError(str(error), reason=error.reason) from error

    def check_tensors(self, phase: int, tensors: Tensors, known: Background) -> None:
        """Names, shapes, dtypes, finiteness, and what the method knows to be impossible."""
        try:
            check_schema(tensors, self._schema(phase, known.num_samples))
            flaw = self.method.flaw(tensors)
        except MethodError as error:  # nothing that a client sends stops the coordinator
            raise InvalidUploadError(str(error), reason=error.reason) from error
        if flaw is not None:
            raise InvalidUploadError(f"no training produces this upload: {flaw}", reason="OUT_OF_RANGE")

    def _schema(self, phase: int, num_samples: int) -> Mapping[str, TensorSpec]:
        if phase != types.PHASE_EXCHANGE:
            raise InvalidUploadError("this phase takes no tensors", reason="WRONG_PHASE")
        return self.method.upload_layout(num_samples)


@dataclass(frozen=True)
class _StoredUpload:
    """An upload that is read from disk when it is asked for."""

    client: str
    num_samples: int
    artifact: Artifact
    store: BlobStore

    def tensors(self) -> Tensors:
        return _read(self.store, self.artifact)


class _Groups(Mapping[str, Tensors]):
    """A state's groups, each read from disk when it is asked for, unless it is among those at hand."""

    def __init__(
        self, artifacts: Mapping[str, Artifact], blobs: BlobStore, codecs: NetworkCodecs, at_hand: State
    ) -> None:
        self._artifacts = artifacts
        self._blobs = blobs
        self._codecs = codecs
        self._at_hand = at_hand

    def __getitem__(self, name: str) -> Tensors:
        if name in self._at_hand:
            return self._at_hand[name]
        return self._codecs.unpack_group(name, _read(self._blobs, self._artifacts[name]))

    def __iter__(self) -> Iterator[str]:
        return iter({**self._artifacts, **self._at_hand})

    def __len__(self) -> int:
        return len({**self._artifacts, **self._at_hand})


def _read(blobs: BlobStore, artifact: Artifact) -> Tensors:
    """A blob's tensors.

    Raises:
        DamagedFileError: Also where the disk refuses: whoever asks is a method, which is not to blame.
    """
    try:
        return blobs.tensors(artifact.sha256)
    except OSError as error:
        raise DamagedFileError(f"{blobs.path(artifact.sha256)}: {error.strerror or error}") from error
