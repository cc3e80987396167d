"""A federated method whose round is one exchange: groups of named tensors go out, named tensors come back.

FedAvg, FedMD, FED3R and most published methods have this shape. A method is one class with both halves; the
coordinator calls the server half, every site the client half, and neither sees the other's data. What the server
half remembers between rounds is a *state*: groups of named tensors. A group is kept as one content-addressed file,
so that it survives a crash, is sent without being copied, and is fetched once by everybody who needs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fkd_common.choices import ModelMode
from fkd_common.config import RunConfig
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

Layout = Mapping[str, TensorSpec]
"""Names, shapes and dtypes of tensors."""
State = Mapping[str, Tensors]
"""Groups of named tensors, by the group's name."""
Record = dict[str, Any]
"""Values that JSON can hold."""

MODEL = "model"
"""The group that holds the global model, where a method has one."""


class NoAggregateError(ValueError):
    """A round's uploads have no aggregate, through no fault of the method's: the run ends."""


class Options(BaseModel):
    """A method's hyper-parameters besides those of the run configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


@dataclass(frozen=True, eq=False)
class Federation:
    """What both halves know of the run."""

    config: RunConfig
    num_classes: int
    anchor_images: NDArray[np.uint8]
    """(m, H, W, 1 or 3): the public images, unlabelled."""
    anchor_embeddings: NDArray[np.float32]
    """(m, d)"""
    extractor: Callable[[], bytes]
    """The extractor's artifact."""

    @property
    def full(self) -> bool:
        """Whether the whole network is trained and exchanged, rather than the head on the frozen extractor."""
        return self.config.model is ModelMode.FULL

    @property
    def embedding_dim(self) -> int:
        """d"""
        return int(self.anchor_embeddings.shape[1])

    @property
    def public(self) -> NDArray[Any]:
        """The public set as models take it: (m, d) embeddings, or in full mode (m, H, W, 1 or 3) uint8 images."""
        return self.anchor_images if self.full else self.anchor_embeddings


class Upload(Protocol):
    """A validated upload, read from disk when it is asked for."""

    @property
    def client(self) -> str:
        """Whose it is."""
        ...

    @property
    def num_samples(self) -> int:
        """n_k"""
        ...

    def tensors(self) -> Tensors:
        """What the client sent; not kept, so that memory does not grow with the number of clients."""
        ...


@dataclass(frozen=True, eq=False)
class Labelled:
    """One part of a site's data."""

    inputs: NDArray[Any]
    """(n, d) float32 embeddings, or in full mode (n, H, W, 1 or 3) uint8 images."""
    labels: NDArray[np.int64]
    """(n,) classes."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(eq=False)
class Site:
    """What the client half works with; never leaves its process but for `memory`, which stays on its disk."""

    name: str
    train: Labelled
    val: Labelled
    """D_val; may be empty."""
    seed: int
    """Follows from the run's seed and the site's name."""
    device: str = "cpu"
    threads: int = 1
    memory: dict[str, Tensors] = field(default_factory=dict)
    """What the client half remembers from round to round, such as a private model; survives a restart."""
    progress: Callable[[float, str], None] = lambda fraction, activity: None
    """Told now and then how far the work is, 0...1, and what it is."""

    def class_counts(self, num_classes: int) -> NDArray[np.int64]:
        """(C,) n_{k,c} of the training part."""
        return np.bincount(self.train.labels, minlength=num_classes)

    def rng(self, *parts: int) -> np.random.Generator:
        """A generator of its own for every purpose, such as a round: equal parts, equal draws."""
        return np.random.default_rng([self.seed, *parts])


@dataclass(frozen=True)
class Aggregate:
    """What a round's uploads became."""

    groups: Mapping[str, Tensors]
    """Groups of the state that change; one without tensors is removed. All others stay."""
    record: Record = field(default_factory=dict)
    """What the round's record says: "weights" by client, "excluded" with the reason, scalars of the method."""


class ExchangeMethod(ABC):
    """A federated method, both halves. Subclasses read like their paper."""

    title: ClassVar[str]
    """As tables show it."""
    source: ClassVar[str]
    """Authors, title, where published."""
    full_mode: ClassVar[bool] = False
    """Whether it can also train and exchange the whole network."""
    trained_group: ClassVar[str] = MODEL
    """The group of the state that a site's upload is an update of, where networks are coded."""
    Options: ClassVar[type[Options]] = Options
    """Its hyper-parameters."""

    def __init__(self, federation: Federation) -> None:
        """Nothing is computed yet.

        Args:
            federation: The run.

        Raises:
            pydantic.ValidationError: The run's `options` are not this method's.
        """
        self.federation = federation
        self.config = federation.config
        self.num_classes = federation.num_classes
        self.options: Any = self.Options(**self.config.options)

    # -- server half ------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> State:
        """The state before round 1."""

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """Groups of the state that a participant of a round gets; one that the state lacks is left out."""
        return (MODEL,)

    @abstractmethod
    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """What a client of n_k = `num_samples` uploads in a round; anything else is refused."""

    def flaw(self, tensors: Tensors) -> str | None:
        """What is wrong with an upload of the right layout and finite values; None if nothing is."""
        return None

    def everyone(self, round_number: int) -> bool:
        """Whether all clients take part in a round, rather than the sampled cohort."""
        return False

    @abstractmethod
    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Fold a round's uploads, given in sorted client order, into the state.

        Any other error is a mistake in this code: the coordinator stops, and goes on in this round once it is mended.

        Raises:
            NoAggregateError: They have no aggregate: all are over no samples, for example.
        """

    def global_model(self, state: State) -> Tensors | None:
        """The global model that is published and scored; None where the method has none."""
        return state.get(MODEL)

    # -- client half ------------------------------------------------------------------------------

    @abstractmethod
    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """One round at a site: what it uploads, computed from its data and the received groups."""

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The site's own model at the end of the run, from the groups of the last state; never leaves the site."""
        return received[MODEL]

    # -- both -------------------------------------------------------------------------------------

    def coded_networks(self) -> Mapping[str, Layout]:
        """Groups of the state that hold a network, with its layout: what the run's codecs may pack.

        Such a group is kept and sent as `model_codec` says, and `state` and `received` hold what everybody unpacks. An
        upload's tensors with names of :attr:`trained_group`, which every participant must get, travel as differences
        to it, as `update_codec` says; :meth:`aggregate` gets them whole. Nothing by default: all is sent as it is.
        """
        return {}

    @property
    def model_is_student(self) -> bool:
        """Whether the global model has the tensors of the run's student and can be scored without this class."""
        return False

    @abstractmethod
    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """Scores of a global or personal model; needs nothing but its tensors and the run configuration.

        A model is also scored where there are no anchors: what it needs of them must be among its tensors.

        Args:
            model: Its tensors.
            inputs: (n, d) embeddings, or in full mode (n, H, W, 1 or 3) uint8 images.
            device: Where a network runs.

        Returns:
            (n, C) float32; the largest is the predicted class, and softmax gives probabilities.
        """


def in_order(uploads: Sequence[Upload]) -> Iterator[tuple[str, int, Tensors]]:
    """Client, n_k and tensors of every upload, one at a time."""
    for upload in uploads:
        yield upload.client, upload.num_samples, upload.tensors()
