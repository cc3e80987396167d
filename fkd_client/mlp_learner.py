"""The neural teacher: scikit-learn's MLP with the student's widths, kept as its weights; nothing of scikit-learn is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.neural_network import MLPClassifier

from fkd_client.boosting import BinnedEmbeddings, SideBySide
from fkd_client.learner import Learner
from fkd_client.progress import Progress
from fkd_common.blas import one_blas_thread
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.residuals import Standardiser
from fkd_common.tensors import Tensors

_CHUNK = 8192
"""Samples scored at a time, to bound memory."""
_PREFIX = "layers."

# A site may well have few samples of many classes.
warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%", UserWarning)


@dataclass(frozen=True, eq=False)
class MlpLearner(Learner):
    """[Linear → ReLU] per hidden layer, then Linear; on embeddings as they are."""

    KEYS = ("teacher_epochs", "hidden", "batch_size", "lr")
    LIBRARY = f"scikit-learn {sklearn.__version__}"
    MARK = f"{_PREFIX}0.weight"

    weights: tuple[NDArray[np.float64], ...]
    """(in, out) of every layer; d goes into the first, C_loc come out of the last."""
    biases: tuple[NDArray[np.float64], ...]
    """(out,) of every layer."""

    @classmethod
    def fit(
        cls,
        h: NDArray[np.float32],
        labels: NDArray[np.int64],
        parts: Mapping[int, NDArray[np.int64]],
        config: RunConfig,
        *,
        threads: int,
        seed: int,
        binned: BinnedEmbeddings | None,
        progress: Progress,
    ) -> dict[int, Self]:
        """See :class:`~fkd_client.learner.Learner`; each part is standardised by its own mean and deviation."""
        if not np.isfinite(h).all():
            raise DataError("the MLP teacher needs embeddings that are finite, these hold NaN or infinity")
        each, num_local = tuple(parts.items()), int(labels.max()) + 1

        def fitted(place: int, told: Progress) -> tuple[MLPClassifier, Standardiser]:
            number, rows = each[place]
            standardiser = Standardiser.of(h[rows])
            random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, number])))
            z = standardiser.apply(h[rows])
            return _trained(z, labels[rows], num_local, config, random, told), standardiser

        # scikit-learn swallows KeyboardInterrupt, which only the main thread gets.
        plan = SideBySide(len(parts), threads, aside=True)
        with one_blas_thread:
            found = plan.run(fitted, progress)
            return {number: cls.folded(*both) for number, both in zip(parts, found, strict=True)}

    @classmethod
    def folded(cls, mlp: MLPClassifier, standardiser: Standardiser) -> Self:
        """What a classifier of standardised embeddings says, as a function of embeddings as they are.

        Args:
            mlp: Fitted to two classes or more; of two it has one output, the margin of the second over the first.
            standardiser: Of its training part.
        """
        weights = [np.asarray(W, np.float64) for W in mlp.coefs_]
        biases = [np.asarray(b, np.float64) for b in mlp.intercepts_]
        weights[0] = weights[0] / standardiser.std[:, None]
        biases[0] = biases[0] - standardiser.mean @ weights[0]
        if mlp.n_outputs_ == 1:
            weights[-1], biases[-1] = np.pad(weights[-1], ((0, 0), (1, 0))), np.pad(biases[-1], (1, 0))
        return cls(tuple(weights), tuple(biases))

    @classmethod
    def of(cls, tensors: Tensors, num_classes: int, num_features: int) -> Self:
        """See :class:`~fkd_client.learner.Learner`."""
        names = [name for name in tensors if name.startswith(_PREFIX)]
        weights, biases, width = [], [], num_features
        for layer in range((len(names) + 1) // 2):
            W, b = (_finite(tensors, f"{_PREFIX}{layer}.{kind}") for kind in ("weight", "bias"))
            if W.ndim != 2 or W.shape[0] != width or b.shape != W.shape[1:] or not b.size:
                raise ValueError(
                    f"{_PREFIX}{layer}: weights of shape {W.shape}, biases of {b.shape}, after {width}"
                )
            weights.append(W)
            biases.append(b)
            width = W.shape[1]
        if width != num_classes:
            raise ValueError(f"the last layer has {width} outputs for {num_classes} classes")
        return cls(tuple(weights), tuple(biases))

    def tensors(self) -> Tensors:
        """Weights and biases, layer by layer."""
        layers = enumerate(zip(self.weights, self.biases, strict=True))
        return {
            f"{_PREFIX}{layer}.{kind}": array
            for layer, both in layers
            for kind, array in zip(("weight", "bias"), both, strict=True)
        }

    def margins(self, h: NDArray[np.float32], threads: int) -> NDArray[np.float64]:
        """Outputs of the last layer, computed in float64 on one thread, whatever `threads`."""
        with one_blas_thread:
            chunks = [self._outputs(h[first : first + _CHUNK]) for first in range(0, len(h), _CHUNK)]
        return np.concatenate(chunks)

    def _outputs(self, h: NDArray[np.float32]) -> NDArray[np.float64]:
        x = np.asarray(h, np.float64)
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = np.maximum(x @ W + b, 0.0)
        return np.asarray(x @ self.weights[-1] + self.biases[-1])


def _trained(
    z: NDArray[np.float32],
    labels: NDArray[np.int64],
    num_local: int,
    config: RunConfig,
    random: np.random.RandomState,
    progress: Progress,
) -> MLPClassifier:
    """A classifier of (n, d) standardised embeddings, after all epochs.

    Raises:
        DataError: Its weights went to infinity.
    """
    mlp = MLPClassifier(
        hidden_layer_sizes=config.hidden,
        solver="adam",
        learning_rate_init=config.lr,
        batch_size=min(config.batch_size, len(labels)),
        random_state=random,  # a number would shuffle every epoch alike
    )
    classes = np.arange(num_local)
    for epoch in range(config.teacher_epochs):
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                mlp.partial_fit(z, labels, classes=classes)
        except ValueError as error:
            raise DataError(
                f"the MLP teacher's weights went to infinity in epoch {epoch + 1}: give a smaller lr than {config.lr:g}"
            ) from error
        progress((epoch + 1) / config.teacher_epochs, "training the teacher")
    return mlp


def _finite(tensors: Tensors, name: str) -> NDArray[Any]:
    array = tensors[name]
    if array.dtype != np.float64 or not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite float64")
    return array
