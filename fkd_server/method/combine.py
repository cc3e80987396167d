"""Which uploads of a phase count, with what weight, and how they become one; knows no rounds and keeps nothing.

Uploads are read one at a time, and for coordinate-wise rules one tensor of each at a time, so that memory does
not grow with the number of clients' models. Everything left out or shortened is named with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from fkd_common.artifacts import BlobStore
from fkd_common.choices import Aggregation, Fusion, NormAction
from fkd_common.config import RunConfig
from fkd_common.method.aggregation import (
    ResidualFusion,
    WeightedAverage,
    capped_shares,
    client_weights,
    drop_unreliable,
)
from fkd_common.method.robust import clip_factors, combine_coordinates, shortened, update_norm
from fkd_common.tensors import Tensors
from fkd_server.method.federated_method import Json, TensorUpload, VoteUpload

COORDINATE_WISE = (Aggregation.MEDIAN, Aggregation.TRIMMED_MEAN)

NO_SAMPLES, NO_WEIGHT, NO_VALIDATION = "n_k = 0", "weight 0", "no validation samples"
"""Why an upload cannot count, whatever the others are."""


@dataclass(frozen=True)
class Combined:
    """One aggregate, and what became of every upload."""

    tensors: Tensors
    weights: Mapping[str, float]
    """Share of each client that counted; sums to 1."""
    excluded: Mapping[str, str]
    """Clients that did not count, and why."""
    clipped: Mapping[str, float]
    """Clients whose upload was shortened to this factor of its length."""
    withheld: int = 0
    """Columns set to 0 because fewer than `min_cohort` clients have weight in them."""

    def record(self) -> dict[str, Json]:
        """What the round's record says about it."""
        return {
            "weights": dict(self.weights),
            "dropped": sorted(self.excluded),
            "excluded": dict(sorted(self.excluded.items())),
            "clipped": dict(self.clipped),
            **({"withheld_columns": self.withheld} if self.withheld else {}),
        }


@dataclass
class _Selection:
    """Uploads still in the running, in sorted client order."""

    kept: dict[str, TensorUpload]
    excluded: dict[str, str] = field(default_factory=dict)
    clipped: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, uploads: Mapping[str, TensorUpload]) -> _Selection:
        selection = cls(dict(uploads))
        selection.exclude({name: NO_SAMPLES for name, upload in uploads.items() if upload.num_samples == 0})
        return selection

    def exclude(self, reasons: Mapping[str, str]) -> None:
        self.excluded.update(reasons)
        self.kept = {name: upload for name, upload in self.kept.items() if name not in reasons}
        self.clipped = {name: factor for name, factor in self.clipped.items() if name not in reasons}

    def bound_norms(self, norms: Mapping[str, float], config: RunConfig) -> None:
        """Apply the norm bound: shorten or leave out what is longer than a multiple of the median."""
        limit = config.norm_limit
        if limit is None or not norms:
            return
        factors = clip_factors(np.array(list(norms.values())), limit).tolist()
        long = {name: factor for name, factor in zip(norms, factors, strict=True) if factor < 1.0}
        if config.norm_action is NormAction.REJECT:
            median = float(np.median(list(norms.values())))
            self.exclude(
                {name: f"norm {norms[name]:.3g}, more than {limit:g} x median {median:.3g}" for name in long}
            )
        else:
            self.clipped = long

    def factor(self, name: str) -> float:
        return self.clipped.get(name, 1.0)

    def require(self, fewest: int, what: str) -> None:
        """A result of fewer would be one site's upload, or nearly, sent to all others."""
        if len(self.kept) < fewest:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(self.excluded.items()))
            raise ValueError(f"{len(self.kept)} {what} may count, min_cohort is {fewest} ({reasons})")

    def result(self, tensors: Tensors, weights: NDArray[Any], withheld: int = 0) -> Combined:
        shares = dict(zip(self.kept, weights.tolist(), strict=True))
        return Combined(tensors, shares, self.excluded, self.clipped, withheld)


def read_upload(store: BlobStore, upload: TensorUpload) -> Tensors:
    """An upload's tensors, verified against its digest."""
    return store.tensors(upload.artifact.sha256)


def unfit_student(upload: TensorUpload, config: RunConfig) -> str | None:
    """Why a student has no weight in any average, or None: no samples, too unreliable, or n_k·max(r_k, τ_r) = 0."""
    if upload.num_samples == 0:
        return NO_SAMPLES
    if not drop_unreliable(np.array([upload.reliability]), config.drop_below)[0]:
        return f"r_k = {upload.reliability:.3g}, below drop_below = {config.drop_below}"
    weightless = config.aggregation not in COORDINATE_WISE and max(upload.reliability, config.tau_r) == 0
    return NO_WEIGHT if weightless else None


def combine_students(
    uploads: Mapping[str, TensorUpload],
    reference: Tensors,
    config: RunConfig,
    store: BlobStore,
    flaw_of: Callable[[Tensors], str | None],
) -> Combined:
    """W_{t+1} of the students that may count: Eqs. 14-15, or their coordinate-wise median or trimmed mean.

    Students that are sound one by one can have an average that is not: one's first layer may multiply what
    another's second layer does. Then the longest update is left out, until the rest has a sound average.

    Args:
        uploads: Students in sorted client order.
        reference: W_t, from which the lengths of updates are measured.
        config: The run configuration.
        store: Where the uploads are.
        flaw_of: What makes an average unusable, or None.

    Raises:
        ValueError: Too few students may count.
    """
    selection = _Selection.of(uploads)
    unfit = {name: unfit_student(upload, config) for name, upload in uploads.items()}
    selection.exclude({name: reason for name, reason in unfit.items() if reason is not None})
    if config.norm_limit is not None:
        selection.bound_norms(_update_norms(selection, reference, store), config)
    while True:
        selection.require(config.min_cohort, "students")
        combined = _combine_kept(selection, reference, config, store)
        flaw = flaw_of(combined.tensors)
        if flaw is None:
            return combined
        norms = _update_norms(selection, reference, store)
        longest = max(norms, key=lambda name: norms[name] * selection.factor(name))
        selection.exclude({longest: f"the longest update of an average of which {flaw}"})


def _update_norms(selection: _Selection, reference: Tensors, store: BlobStore) -> dict[str, float]:
    return {name: update_norm(read_upload(store, u), reference) for name, u in selection.kept.items()}


def _combine_kept(selection: _Selection, reference: Tensors, config: RunConfig, store: BlobStore) -> Combined:
    if config.aggregation in COORDINATE_WISE:
        tensors = _coordinate_wise_students(selection, reference, config, store)
        return selection.result(tensors, np.full(len(selection.kept), 1.0 / len(selection.kept)))
    weights = client_weights(
        np.array([upload.num_samples for upload in selection.kept.values()], dtype=np.float64),
        np.array([upload.reliability for upload in selection.kept.values()]),
        config.tau_r,
    )
    if config.max_weight_share < 1.0:
        weights = capped_shares(weights, config.max_weight_share)
    average = WeightedAverage()
    for (name, upload), weight in zip(selection.kept.items(), weights, strict=True):
        average.add(shortened(read_upload(store, upload), reference, selection.factor(name)), float(weight))
    dtypes = {name: tensor.dtype for name, tensor in reference.items()}
    return selection.result(
        {n: t.astype(dtypes[n], copy=False) for n, t in average.result().items()}, weights
    )


def _coordinate_wise_students(
    selection: _Selection, reference: Tensors, config: RunConfig, store: BlobStore
) -> Tensors:
    """One tensor of all clients at a time, never all of their models."""
    for upload in selection.kept.values():
        store.check(upload.artifact.sha256)  # verified here: single tensors cannot be
    combined: Tensors = {}
    for tensor_name, start in reference.items():
        values = []
        for client, upload in selection.kept.items():
            with safe_open(store.path(upload.artifact.sha256), framework="numpy") as file:
                value = {tensor_name: file.get_tensor(tensor_name)}
            values.append(shortened(value, {tensor_name: start}, selection.factor(client))[tensor_name])
        rule_applied = combine_coordinates(values, config.aggregation, config.trim_fraction)
        combined[tensor_name] = rule_applied.astype(start.dtype)
    return combined


def combine_residuals(uploads: Mapping[str, TensorUpload], config: RunConfig, store: BlobStore) -> Combined:
    """R̄ of the residuals that may count: Eq. 12, or their coordinate-wise median or trimmed mean.

    With class-aware fusion only clients that have a class enter its column, whatever the rule, and a column that
    fewer than `min_cohort` of them enter is 0: it would be one site's, or nearly, sent to all others. With fusion
    by size the zero column of a client without the class counts, and where most clients lack it the median is 0.

    Raises:
        ValueError: Residuals of too few clients may count.
    """
    selection = _Selection.of(uploads)
    if config.norm_limit is not None:
        norms = {
            name: float(np.linalg.norm(_residuals(store, upload).astype(np.float64)))
            for name, upload in selection.kept.items()
        }
        selection.bound_norms(norms, config)
    selection.require(config.min_cohort, "residuals")
    by_class = config.fusion is Fusion.CLASS_AWARE
    counts, withheld = _class_counts(selection, config) if by_class else (np.zeros((0, 0)), 0)
    sizes = np.array([upload.num_samples for upload in selection.kept.values()], dtype=np.float64)
    if config.aggregation in COORDINATE_WISE:
        values = [_residuals(store, u) * selection.factor(n) for n, u in selection.kept.items()]
        if by_class:
            fused = _column_wise(values, counts, config)
        else:
            fused = combine_coordinates(values, config.aggregation, config.trim_fraction)
        shares = np.full(len(values), 1.0 / len(values))
        return selection.result({"fused_residuals": fused.astype(np.float32)}, shares, withheld)
    weights = counts if by_class else sizes
    if config.max_weight_share < 1.0:
        weights = _capped(weights, config.max_weight_share)
    fusion = ResidualFusion()
    for (name, upload), weight in zip(selection.kept.items(), weights, strict=True):
        residuals, factor = _residuals(store, upload), selection.factor(name)
        fusion.add(residuals if factor == 1.0 else residuals * factor, weight)
    shares = weights if not by_class else weights.sum(axis=1)
    shares = shares / max(1e-300, float(shares.sum()))
    return selection.result({"fused_residuals": fusion.result()}, shares, withheld)


def _class_counts(selection: _Selection, config: RunConfig) -> tuple[NDArray[np.float64], int]:
    """(K, C) n_{k,c} with the columns of too few clients set to 0, and how many those are."""
    counts = np.array([upload.class_counts for upload in selection.kept.values()], dtype=np.float64)
    owners = np.count_nonzero(counts, axis=0)
    few = (owners > 0) & (owners < config.min_cohort)
    counts[:, few] = 0.0
    return counts, int(few.sum())


def moment_factors(uploads: Mapping[str, TensorUpload], config: RunConfig) -> dict[str, float]:
    """What each client's sums are multiplied with: 1, other where a share of the samples exceeds `max_weight_share`.

    Clients without samples are left out. Scaling keeps the total number of samples, so that ridge strengths mean
    the same; sums whose shares respect the cap stay exact.

    Raises:
        ValueError: Too few clients have samples.
    """
    selection = _Selection.of(uploads)
    selection.require(config.min_cohort, "moments")
    if config.max_weight_share >= 1.0:
        return dict.fromkeys(selection.kept, 1.0)
    sizes = {name: upload.num_samples for name, upload in selection.kept.items()}
    return _capped_factors(sizes, config.max_weight_share)


def vote_factors(uploads: Mapping[str, VoteUpload], config: RunConfig) -> dict[str, float]:
    """What each client's counts are multiplied with: 1, other where its validation samples exceed `max_weight_share`.

    Clients without validation samples are left out.

    Raises:
        ValueError: Too few clients have any: their votes would be published as they are.
    """
    sizes = {name: upload.num_validation for name, upload in uploads.items() if upload.num_validation > 0}
    if len(sizes) < config.min_cohort:
        raise ValueError(f"{len(sizes)} votes are over validation samples, min_cohort is {config.min_cohort}")
    if config.max_weight_share >= 1.0:
        return dict.fromkeys(sizes, 1.0)
    return _capped_factors(sizes, config.max_weight_share)


def _capped_factors(sizes: Mapping[str, int], cap: float) -> dict[str, float]:
    """Capped shares over shares; what the sizes are multiplied with keeps their sum."""
    values = np.array(list(sizes.values()), dtype=np.float64)
    return dict(zip(sizes, (capped_shares(values, cap) * values.sum() / values).tolist(), strict=True))


def _capped(weights: NDArray[np.float64], cap: float) -> NDArray[np.float64]:
    """Capped shares of every column that has any weight."""
    if weights.ndim == 1:
        return capped_shares(weights, cap)
    capped = np.zeros_like(weights)
    for c in np.flatnonzero(weights.sum(axis=0)):
        capped[:, c] = capped_shares(weights[:, c], cap)
    return capped


def _column_wise(values: list[NDArray[Any]], counts: NDArray[Any], config: RunConfig) -> NDArray[np.float64]:
    """Every class's column over the clients that have the class; 0 where nobody has."""
    fused = np.zeros(values[0].shape)
    for c in range(counts.shape[1]):
        columns = [value[:, c] for value, count in zip(values, counts[:, c], strict=True) if count > 0]
        if columns:
            fused[:, c] = combine_coordinates(columns, config.aggregation, config.trim_fraction)
    return fused


def _residuals(store: BlobStore, upload: TensorUpload) -> NDArray[Any]:
    return read_upload(store, upload)["residuals"]


def sum_votes(
    uploads: Mapping[str, VoteUpload], candidates: Iterable[str], config: RunConfig
) -> tuple[dict[str, float], dict[str, Json]]:
    """Correct answers by candidate, and what the record says of them.

    They add up to the exact pooled validation accuracy of every candidate, unless a share is capped.
    """
    total = sum(upload.num_validation for upload in uploads.values())
    factors = vote_factors(uploads, config)
    counts = {
        name: sum(factor * uploads[client].correct[name] for client, factor in factors.items())
        for name in candidates
    }
    return counts, {
        "validation_samples": total,
        "validation_accuracy": {name: count / total for name, count in counts.items()},
        "excluded": dict.fromkeys(sorted(set(uploads) - set(factors)), NO_VALIDATION),
    }
