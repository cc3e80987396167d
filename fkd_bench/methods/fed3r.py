"""FED3R."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import MomentFeatures
from fkd_common.exchange_method import (
    MODEL,
    Aggregate,
    ExchangeMethod,
    Layout,
    NoAggregateError,
    Site,
    State,
    Upload,
    in_order,
)
from fkd_common.method.moment_checks import moment_flaw
from fkd_common.method.moments import (
    accumulate,
    apply_moments,
    make_definite,
    moment_vector,
    pack_symmetric,
    solve,
    unpack_symmetric,
)
from fkd_common.method.personal import log_prior
from fkd_common.method.residuals import Standardiser
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

MOMENTS, VOTE = 1, 2
"""What clients are asked for in the first two rounds; in later ones nothing happens."""
CANDIDATES = "candidates"
"""The group of solutions that are voted on."""
_ROWS = 4096
"""Samples whose features are held at a time."""


class FED3R(ExchangeMethod):
    """Ridge regression on all clients' embeddings from sums that add up exactly: W = (Σ A_k + λI)⁻¹ Σ b_k.

    A_k = Σ z zᵀ and b_k = Σ z yᵀ with z = [h̄; 1], h̄ the frozen extractor's embedding, standardised with the anchors'
    mean and standard deviation, and y the one-hot label. Everyone takes part, whatever the cohort.

    - Round 1: clients send A_k (its upper triangle) and b_k; the server solves for every λ of `lambda_grid`.
    - Round 2: clients get the solutions and send how many samples of D_val each gets right; the best one stays.
    - Later rounds send nothing either way: two are enough. With one round the first λ of the grid is used.

    The paper fixes λ; choosing it by counts is what FKD-RTM does. Scores are κ·zᵀW, with `kappa` of the run: logits
    that a log prior can be added to. Classes' weights are not scaled to equal length, as they are in the authors'
    code. b_k tells the server a client's class counts.

    With p features the server holds three (p, p) float64 matrices at most while it solves, whatever the number of
    clients.
    """

    title = "FED3R"
    source = (
        "Fanì et al., Accelerating Heterogeneous Federated Learning with Closed-form Classifiers, ICML 2024"
    )

    def p(self, d: int) -> int:
        """Length of z for d-dimensional embeddings."""
        return d + 1

    def z(self, embeddings: NDArray[np.float32], standardiser: Standardiser) -> NDArray[np.float32]:
        """(n, p) features of (n, d) embeddings."""
        return moment_vector((), standardiser.apply(embeddings), MomentFeatures.EMBEDDING)

    # -- server half ------------------------------------------------------------------------------

    def start(self) -> State:
        """Nothing is known yet."""
        return {}

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """The candidates for the vote; then the one that won, wherever personal models may be built on it."""
        if round_number == VOTE and self.config.rounds >= VOTE:
            return (CANDIDATES,)
        idle = VOTE < round_number <= self.config.rounds and self.config.personal_every == 0
        return () if idle else (MODEL,)

    def everyone(self, round_number: int) -> bool:
        """Sums lack whoever is not asked."""
        return round_number <= VOTE

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """Moments, then counts, then nothing."""
        p = self.p(self.federation.embedding_dim)
        if round_number == MOMENTS:
            return {
                "A": TensorSpec((p * (p + 1) // 2,), "float32"),
                "b": TensorSpec((p, self.num_classes), "float32"),
            }
        if round_number == VOTE:
            candidates = len(self.config.lambda_grid)
            return {"correct": TensorSpec((candidates,), "int64"), "validation": TensorSpec((), "int64")}
        return {}

    def flaw(self, tensors: Tensors) -> str | None:
        """Counts beyond the samples, or moments that no samples have."""
        if "correct" in tensors:
            correct, n_val = tensors["correct"], int(tensors["validation"])
            if correct.min() >= 0 and correct.max() <= n_val <= self.config.max_samples:
                return None
            return f"{correct.tolist()} samples right of {n_val}"
        if "A" not in tensors:
            return None
        b = tensors["b"]
        A = unpack_symmetric(tensors["A"], len(b), None)
        n = A[-1, -1]
        if not (0 <= n <= self.config.max_samples and n == round(n)):
            return f"moments of {n:.6g} samples"
        if b[-1].min() < 0:
            return f"a class of {b[-1].min():.6g} samples"
        # Σ z tᵀ for t = κ(y − 1/C), which is what the checks of moments are written for.
        B = self.config.kappa * (b - A[:, -1:] / self.num_classes)
        return moment_flaw(A, B, int(n), self.federation.embedding_dim, self.config, None)

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Solve, or count."""
        if round_number == MOMENTS:
            return self._solved(uploads)
        if round_number == VOTE:
            return self._elected(state[CANDIDATES]["W"], uploads)
        return Aggregate({})

    def _solved(self, uploads: Sequence[Upload]) -> Aggregate:
        d, grid = self.federation.embedding_dim, self.config.lambda_grid
        p = self.p(d)
        triangle, b = np.zeros(p * (p + 1) // 2), np.zeros((p, self.num_classes))
        for _, _, tensors in in_order(uploads):
            triangle += tensors["A"]
            b += tensors["b"]
            del tensors
        A = unpack_symmetric(triangle, p, None)
        del triangle
        make_definite(A, min(grid))
        W = np.stack([solve(A, b, lambda_).astype(np.float32) for lambda_ in grid])
        if not np.isfinite(W).all():
            raise NoAggregateError("the pooled moments have no finite solution")
        total = sum(upload.num_samples for upload in uploads)
        record = {
            "weights": {upload.client: upload.num_samples / total for upload in uploads},
            "lambda": grid[0],
        }
        return Aggregate({CANDIDATES: {"W": W}, MODEL: self._model(W[0])}, record)

    def _elected(self, W: NDArray[np.float32], uploads: Sequence[Upload]) -> Aggregate:
        grid = self.config.lambda_grid
        correct, n_val = np.zeros(len(grid), np.int64), 0
        for _, _, tensors in in_order(uploads):
            correct += tensors["correct"]
            n_val += int(tensors["validation"])
        best = int(correct.argmax())
        shares = {f"{lambda_:g}": int(c) / max(1, n_val) for lambda_, c in zip(grid, correct, strict=True)}
        record = {"lambda": grid[best], "validation_samples": n_val, "validation_accuracy": shares}
        return Aggregate({CANDIDATES: {}, MODEL: self._model(W[best])}, record)

    def _model(self, W: NDArray[np.float32]) -> Tensors:
        standardiser = Standardiser.of(self.federation.anchor_embeddings)
        return {"W": W, "mean": standardiser.mean, "std": standardiser.std}

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Sum, then vote."""
        if round_number == MOMENTS:
            return self._moments(site)
        if round_number == VOTE:
            correct = [self._correct(site, self._model(W)) for W in received[CANDIDATES]["W"]]
            return {"correct": np.array(correct, np.int64), "validation": np.array(len(site.val), np.int64)}
        return {}

    def _moments(self, site: Site) -> Tensors:
        standardiser = Standardiser.of(self.federation.anchor_embeddings)
        p, n = self.p(self.federation.embedding_dim), len(site.train)
        A, b = np.zeros((p, p)), np.zeros((p, self.num_classes))
        for first in range(0, n, _ROWS):
            rows = slice(first, first + _ROWS)
            y = np.eye(self.num_classes)[site.train.labels[rows]]
            part = accumulate(self.z(site.train.inputs[rows], standardiser), y)
            A += part.A
            b += part.B
            site.progress(min(1.0, (first + _ROWS) / n), "summing moments")
        return {"A": pack_symmetric(A, 0).astype(np.float32), "b": b.astype(np.float32)}

    def _correct(self, site: Site, model: Tensors) -> int:
        return int((self.scores(model, site.val.inputs).argmax(axis=1) == site.val.labels).sum())

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The global model, its scores shifted by the site's log prior if that is better on D_val."""
        model = received[MODEL] if MODEL in received else self._model(received[CANDIDATES]["W"][0])
        prior = log_prior(site.class_counts(self.num_classes)).astype(np.float32)
        shifted = {**model, "log_prior": prior}
        return shifted if self._correct(site, shifted) > self._correct(site, model) else model

    # -- both -------------------------------------------------------------------------------------

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """κ·zᵀW, plus the log prior of a personal model."""
        standardiser = Standardiser(model["mean"], model["std"])
        scores = np.empty((len(inputs), self.num_classes), np.float32)
        for first in range(0, len(inputs), _ROWS):
            rows = slice(first, first + _ROWS)
            scores[rows] = self.config.kappa * apply_moments(self.z(inputs[rows], standardiser), model["W"])
        return scores + model["log_prior"] if "log_prior" in model else scores
