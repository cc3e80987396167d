"""A published model of any method, ready to score; reads no files and trains nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fkd_client.extractor import EMBEDDING_DIM
from fkd_client.global_model import GlobalModel
from fkd_common.config import RunConfig
from fkd_common.exchange_method import ExchangeMethod, Federation
from fkd_common.method_registry import method_of
from fkd_common.model_file import ExchangeModel, PublishedModel
from fkd_common.own_code import OwnCode, check_scores


class PublishedScorer(Protocol):
    """Scores images with a published model."""

    @property
    def published(self) -> str:
        """Which of the candidates is the global model."""
        ...

    @property
    def takes_images(self) -> bool:
        """Whether inputs are images rather than embeddings."""
        ...

    def candidate_logits(self, inputs: NDArray[Any]) -> Mapping[str, NDArray[np.float32]]:
        """Scores of every candidate by name.

        Args:
            inputs: (n, d) float32 embeddings, or (n, H, W, 1 or 3) uint8 images.

        Returns:
            (n, C) float32 each.
        """
        ...


def scorer_of(model: PublishedModel, extractor: bytes, device: str = "cpu") -> PublishedScorer:
    """What scores with a model.

    Args:
        model: From a model file.
        extractor: The artifact of the extractor that it names.
        device: Where a network of its own runs.

    Raises:
        UsageError: Its method is not installed here.
    """
    if isinstance(model, ExchangeModel):
        header = model.header
        method = method_alone(header.config, len(header.classes), extractor)
        return _ExchangeScorer(method, model, device)
    return _StudentScorer(GlobalModel.of(model))


def method_alone(config: RunConfig, num_classes: int, extractor: bytes) -> ExchangeMethod:
    """A run's method without its anchors: enough to score models.

    Raises:
        UsageError: It is not installed here.
        MethodError: It cannot be made.
    """
    no_images, no_embeddings = np.zeros((0, 1, 1, 3), np.uint8), np.zeros((0, EMBEDDING_DIM), np.float32)
    federation = Federation(config, num_classes, no_images, no_embeddings, lambda: extractor)
    return method_of(federation)


@dataclass(frozen=True)
class _StudentScorer:
    model: GlobalModel
    takes_images: bool = False

    @property
    def published(self) -> str:
        return self.model.published.value

    def candidate_logits(self, inputs: NDArray[Any]) -> Mapping[str, NDArray[np.float32]]:
        return self.model.candidate_logits(inputs)


@dataclass(frozen=True)
class _ExchangeScorer:
    method: ExchangeMethod
    model: ExchangeModel
    device: str

    @property
    def published(self) -> str:
        return self.model.header.published

    @property
    def takes_images(self) -> bool:
        return self.method.federation.full

    def candidate_logits(self, inputs: NDArray[Any]) -> Mapping[str, NDArray[np.float32]]:
        with OwnCode(self.method.config.method, type(self.method)).at_work("scores"):
            scores = self.method.scores(dict(self.model.tensors), inputs, self.device)
            check_scores(scores, len(inputs), len(self.model.header.classes))
        return {self.published: np.asarray(scores, np.float32)}
