"""The client half of every method that is one exchange a round: fetch groups, compute, upload, remember.

The arithmetic is the method's own (:class:`fkd_common.exchange_method.ExchangeMethod`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fkd_client.part import PartPlace
from fkd_client.progress import Progress
from fkd_client.received import checked
from fkd_client.report import PersonalScores, Report, build_report
from fkd_client.site import Site
from fkd_client.split import split_train_val
from fkd_client.stopwatch import Stopwatch
from fkd_client.transfer import TensorMessage
from fkd_common import exchange_method as exchange
from fkd_common.artifacts import write_atomically
from fkd_common.codecs.networks import NetworkCodecs
from fkd_common.codecs.student import rounding
from fkd_common.errors import DamagedFileError, DataError, FkdError
from fkd_common.method.metrics import accuracy, full_and_matched
from fkd_common.method_registry import method_of
from fkd_common.model_file import ExchangeHeader, ExchangeModel, encode_model
from fkd_common.own_code import (
    OwnCode,
    check_groups,
    check_layout,
    check_scores,
    check_tensors,
    checked_layout,
)
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, decode_writeable, encode
from fkd_common.tracing import part_span
from fkd_shards.shard import Shard

PERSONAL = "personal"
"""The only candidate for a site's own model."""
PERSONAL_FILE = "personal.safetensors"
MEMORY_FILE = "memory.safetensors"
_SEPARATOR = "|"


class ExchangePart:
    """A site's part in a run of such a method."""

    def __init__(self, site: Site, place: PartPlace, extractor: bytes) -> None:
        """Nothing is computed yet.

        Args:
            site: What the site brings.
            place: Where it takes part.
            extractor: The extractor's artifact.

        Raises:
            UsageError: The run's method is not installed here.
            MethodError: It cannot be made.
        """
        config = place.run.config
        federation = exchange.Federation(
            config, site.num_classes, site.anchor_images, site.anchor_embeddings, lambda: extractor
        )
        self.method = method_of(federation)
        self._own = OwnCode(config.method, type(self.method))
        with self._own.at_work("coded_networks"):
            self._codecs = NetworkCodecs.of(self.method)
        self.folder = place.folder
        self.personal_round = 0
        self._personal: Tensors | None = None
        self._stopwatch = Stopwatch()
        self._memories: dict[int, dict[str, Tensors]] = {}
        self._brings = site
        self._place = place

    def prepare(self) -> Mapping[str, Any]:
        """Embeddings or images, the split, and what the site remembers from before a restart."""
        brings, config = self._brings, self._place.run.config
        labels = brings.labels()
        with self._stopwatch.phase("embed"):
            brings.check_extractor()
            inputs = self._inputs(brings.shard, self._place.progress)
        seed = brings.seed(config)
        train, val = split_train_val(labels, config.val_fraction, seed)
        self.site = exchange.Site(
            brings.name,
            exchange.Labelled(inputs[train], labels[train]),
            exchange.Labelled(inputs[val], labels[val]),
            seed,
            brings.device,
            brings.threads,
            progress=self._place.progress,
        )
        self._memories = self._remembered()
        classes = int(np.count_nonzero(self.site.class_counts(brings.num_classes)))
        return {"samples": len(train), "validation": len(val), "classes": classes}

    def run(self, task: pb.Task) -> None:
        """See :class:`fkd_client.part.Part`."""
        handlers = {types.PHASE_EXCHANGE: self._exchange, types.PHASE_PERSONAL: self._personalise}
        handler = handlers.get(task.key.phase)
        if handler is None:
            raise DataError(
                f"the coordinator asks for phase {task.key.phase}, which {self._place.run.config.method} does not "
                "have: install the same fkd release"
            )
        received = {
            reference.name: self._unpacked(
                reference.name, decode_writeable(self._place.transfer.fetch(reference, task.key))
            )
            for reference in task.inputs
        }
        handler(task, received)

    def _unpacked(self, group: str, packed: Tensors) -> Tensors:
        """A group of the state as everybody has it."""
        if group not in self._codecs.networks:
            return packed
        layout = self._codecs.networks[group]
        return checked(f"group {group!r}", lambda: self._codecs.unpack_group(group, packed), layout)

    @contextlib.contextmanager
    def _at_work(self, function: str, round_number: int) -> Iterator[None]:
        """Say whose fault it is if something goes wrong inside: the device's, or the method's own code's."""
        with self._own.at_work(function, round_number):
            try:
                yield
            except torch.OutOfMemoryError as error:
                raise FkdError(
                    "the device ran out of memory in this task: free it, or use --device cpu",
                    reason="OUT_OF_MEMORY",
                ) from error

    def _exchange(self, task: pb.Task, received: exchange.State) -> None:
        self.site.memory = self._memory_before(task.key.round)
        number, start = task.key.round, self._start_of(received)
        with part_span("train"), self._stopwatch.phase("local"), self._at_work("local_update", number):
            tensors = self.method.local_update(self.site, received, number)
            check_groups("into site.memory something", self.site.memory, finite=False)
        with self._at_work("upload_layout", number):
            layout = checked_layout(self.method.upload_layout(number, len(self.site.train)))
        with self._at_work("local_update", number):
            check_layout("an upload", tensors, layout)
        self._remember(number)
        request = pb.SubmitExchangeRequest(key=task.key, num_samples=len(self.site.train))
        packed = self._codecs.pack_upload(
            tensors, start, layout, rounding([self.site.seed], number, task.key.phase)
        )
        self._place.transfer.submit(TensorMessage("SubmitExchange", request, packed))

    def _start_of(self, received: exchange.State) -> Tensors:
        """What an upload is a difference to, kept from a method that trains in place; nothing without a codec."""
        if not self._codecs.codes_uploads:
            return {}
        return {name: array.copy() for name, array in received[self.method.trained_group].items()}

    def _personalise(self, task: pb.Task, received: exchange.State) -> None:
        self.site.memory = self._memory_before(task.key.round + 1)
        with self._stopwatch.phase("personal"), self._at_work("personal_model", task.key.round):
            personal = self.method.personal_model(self.site, received)
            check_tensors("a model", personal, finite=False)
        self._personal = personal
        self.personal_round = task.key.round
        with contextlib.suppress(OSError):  # written again when the run is over
            self._keep(self._personal)
        request, val = pb.FinishTaskRequest(key=task.key), self.site.val
        if self._place.run.config.report_personal and len(val):
            request.personal_correct = round(self._on_val(self._personal) * len(val))
            request.num_validation = len(val)
        self._place.session.call("FinishTask", request, pb.SubmitResponse, key=task.key)

    # -- the end ----------------------------------------------------------------------------------

    def conclude(self, test: Shard | None, progress: Progress) -> Report:
        """See :class:`fkd_client.part.Part`."""
        personal = PersonalScores()
        if self._personal is not None:
            self._keep(self._personal)
            with self._stopwatch.phase("assess"):
                tested = {} if test is None else {PERSONAL: self._assess(self._personal, test, progress)}
                personal = PersonalScores(PERSONAL, {PERSONAL: self._on_val(self._personal)}, tested)
        return build_report(
            self._place.run.run_id,
            self._brings,
            (len(self.site.train), len(self.site.val)),
            self.site.class_counts(self.method.num_classes),
            personal,
            self._stopwatch,
            self._place.session.ledger,
        )

    def _on_val(self, model: Tensors) -> float:
        """A personal model's accuracy on D_val; nan without one."""
        val = self.site.val
        return accuracy(self._scores(model, val.inputs), val.labels) if len(val) else float("nan")

    def _scores(self, model: Tensors, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """(n, C) scores of a model."""
        with self._at_work("scores", self.personal_round):
            scores = self.method.scores(model, inputs, self.site.device)
            check_scores(scores, len(inputs), self.method.num_classes)
        return scores

    def _assess(self, model: Tensors, test: Shard, progress: Progress) -> dict[str, float]:
        """Accuracy on a test shard."""
        if test.labels is None:
            raise DataError(f"test shard {test.name} has no labels")
        scores = self._scores(model, self._inputs(test, progress))
        return full_and_matched(scores, test.labels, self.site.class_counts(self.method.num_classes))

    def _inputs(self, shard: Shard, progress: Progress) -> NDArray[Any]:
        return shard.images if self.method.federation.full else self._brings.embed(shard, progress)

    def _keep(self, tensors: Tensors) -> None:
        run = self._place.run
        header = ExchangeHeader(
            classes=run.classes, config=run.config, extractor_sha256=run.artifacts["extractor"].sha256.hex()
        )
        self._own_folder()
        write_atomically(self.folder / PERSONAL_FILE, encode_model(ExchangeModel(header, tensors)))

    # -- memory -----------------------------------------------------------------------------------

    def _memory_before(self, round_number: int) -> dict[str, Tensors]:
        """What the site remembered when a round began: a round that is asked for again is computed as it was."""
        earlier = [number for number in self._memories if number < round_number]
        return dict(self._memories[max(earlier)]) if earlier else {}

    def _remember(self, round_number: int) -> None:
        """Keep what the method remembers after a round, and after the one before, before anything is uploaded.

        Wherever the program is ended, its next start has what the round at work began with.
        """
        earlier = [number for number in self._memories if number < round_number]
        kept = {number: self._memories[number] for number in sorted(earlier)[-1:]}
        self._memories = {**kept, round_number: dict(self.site.memory)}
        flat = {
            _SEPARATOR.join((str(number), group, name)): array
            for number, memory in self._memories.items()
            for group, tensors in memory.items()
            for name, array in tensors.items()
        }
        if not flat:
            return
        self._own_folder()
        try:
            write_atomically(self.folder / MEMORY_FILE, encode(flat))
        except OSError as error:
            raise FkdError(
                f"{self.folder / MEMORY_FILE} cannot be written: {error.strerror or error}", reason="STORAGE"
            ) from error

    def _remembered(self) -> dict[int, dict[str, Tensors]]:
        """By the round after which it was remembered."""
        memories: dict[int, dict[str, Tensors]] = {}
        try:
            for key, array in decode_writeable((self.folder / MEMORY_FILE).read_bytes()).items():
                number, group, name = key.split(_SEPARATOR, 2)
                memories.setdefault(int(number), {}).setdefault(group, {})[name] = array
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, FkdError) as error:
            raise DamagedFileError(
                f"{self.folder / MEMORY_FILE} is damaged ({error}): remove it to start this site's own model anew"
            ) from error
        return memories

    def _own_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
