"""Moments of several clients, added up one by one; solves nothing and keeps nothing but the clients' own blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.config import RunConfig
from fkd_common.method.moment_checks import OutputLayer, samples_per_class
from fkd_common.method.moments import unpack_symmetric
from fkd_common.tensors import decode
from fkd_server.method.combine import moment_factors, read_upload
from fkd_server.method.federated_method import Json, TensorUpload


@dataclass(frozen=True)
class MomentShape:
    """Sizes of a run's moments."""

    p: int
    """Features."""
    block: int
    """Of those, the last ones that never change: d + 1."""
    num_classes: int


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Σ A_k and Σ B_k, and what they are of."""

    shape: MomentShape
    rest: NDArray[np.float64]
    """1-D, packed rows of Σ A_k before the block."""
    block: NDArray[np.float64]
    """1-D, the block's packed rows."""
    B: NDArray[np.float64]
    """(p, C) Σ B_k."""
    factors: Mapping[str, float]
    """By client that counted, what its sums were multiplied with."""
    samples: int
    """Σ n_k of those."""
    blocks: Mapping[str, Artifact]
    """Per client, its packed block: as they were, and those of clients that sent theirs for the first time."""
    class_counts: Mapping[str, Json]
    """By client, samples per class, where the moments tell them."""

    def matrix(self) -> NDArray[np.float64]:
        """(p, p) Σ A_k."""
        return unpack_symmetric(self.rest, self.shape.p, unpack_symmetric(self.block, self.shape.block, None))

    def packed(self) -> NDArray[np.float64]:
        """1-D, all of Σ A_k, as :func:`~fkd_common.method.moments.pack_symmetric` packs it."""
        return np.concatenate([self.rest, self.block])

    def record(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """What the round's record says about them."""
        return {
            "pooled_samples": self.samples,
            "features": self.shape.p,
            "dropped": sorted(set(uploads) - set(self.factors)),
            "scaled": {name: factor for name, factor in self.factors.items() if factor != 1.0},
            "class_counts": self.class_counts,
        }


def sum_moments(
    uploads: Mapping[str, TensorUpload],
    shape: MomentShape,
    blocks: Mapping[str, Artifact],
    stores: tuple[BlobStore, BlobStore],
    config: RunConfig,
    output: OutputLayer | None,
) -> MomentSums:
    """Add up the moments of all clients that have samples.

    Args:
        uploads: Moments in sorted client order.
        shape: Their sizes.
        blocks: Per client, the block that it sent with its first moments, and not again.
        stores: Where blocks are kept, and where the uploads are.
        config: What may count, and how much.
        output: The student's last layer, if moments tell how many samples of each class a client has.

    Raises:
        ValueError: Too few clients have samples.
    """
    kept_in, uploaded_to = stores
    block_length = shape.block * (shape.block + 1) // 2
    rest = np.zeros(shape.p * (shape.p + 1) // 2 - block_length)
    block, B = np.zeros(block_length), np.zeros((shape.p, shape.num_classes))
    known, counts, factors = dict(blocks), dict[str, Json](), moment_factors(uploads, config)
    for client, factor in factors.items():
        upload = uploads[client]
        tensors = read_upload(uploaded_to, upload)
        if output is not None:
            d = shape.block - 1
            shown = samples_per_class(tensors["A"], tensors["B"], upload.num_samples, d, config.kappa, output)
            counts[client] = shown.tolist()
        if upload.relay:  # its clients may be others the next time: it sends all of A, always
            own = tensors["A"][rest.size :]
        else:
            if client not in known:  # sent once, kept for the run
                known[client] = kept_in.put_tensors({"block": tensors["A"][rest.size :]})
            own = decode(kept_in.read(known[client].sha256))["block"]
        for total, part in ((rest, tensors["A"][: rest.size]), (block, own), (B, tensors["B"])):
            total += part if factor == 1.0 else part * np.float64(factor)
    samples = sum(uploads[name].num_samples for name in factors)
    return MomentSums(shape, rest, block, B, factors, samples, known, counts)
