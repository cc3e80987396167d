"""The refinement of the pooled moments, step by step: what is kept between gradients, and how a step is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.codecs.statistics import pack_statistics
from fkd_common.config import RunConfig
from fkd_common.method.moments import pack_symmetric, unpack_symmetric
from fkd_common.method.refinement import Ascent, ascend
from fkd_common.tensors import decode


@dataclass(frozen=True)
class PooledMoments:
    """The moments that are refined: references to artifacts, never the tensors themselves."""

    moments: Artifact
    """"A", packed."""
    bound: Artifact
    """"squares", (p,) what no member's Σ z² exceeds: every gradient is held against it."""
    members: tuple[str, ...]
    """Whose samples they are of."""
    samples: int


@dataclass(frozen=True)
class AscentState:
    """Steps of the refinement so far."""

    pooled: PooledMoments
    position: Artifact
    """"W" and "N", (p, C) float64."""
    asked: Artifact
    """"V", (p, C), packed: where clients compute their gradients."""
    t: float = 1.0

    def artifacts(self) -> tuple[Artifact, ...]:
        """What they refer to."""
        return self.position, self.asked, self.pooled.moments, self.pooled.bound


class Refinement:
    """Makes the steps of one run."""

    def __init__(self, config: RunConfig, blobs: BlobStore) -> None:
        """Nothing is kept but in the states.

        Args:
            config: The run configuration.
            blobs: Where tensors are kept.
        """
        self._mu = config.refine_l2
        self._codec = config.statistics_in_force
        self._blobs = blobs

    def nearest(self, strengths: tuple[float, ...]) -> int:
        """The ridge strength whose solution the steps start from: the one nearest to μ."""
        return min(range(len(strengths)), key=lambda i: abs(math.log(strengths[i] / self._mu)))

    def pooled(self, A: NDArray[np.float64], factors: Mapping[str, float]) -> PooledMoments:
        """Keep what the steps will need of the moments.

        Args:
            A: (p, p) Σ A_k.
            factors: By member, what its moments are multiplied with in A.
        """
        squares = A.diagonal() / min(1.0, *factors.values())
        return PooledMoments(
            self._blobs.put_tensors({"A": pack_symmetric(A, 0)}),
            self._blobs.put_tensors({"squares": squares}),
            tuple(factors),
            round(A[-1, -1]),
        )

    def begin(self, pooled: PooledMoments, V: NDArray[np.float32]) -> AscentState:
        """Before the first step, at a solution V, (p, C)."""
        start = V.astype(np.float64)
        return AscentState(pooled, self._blobs.put_tensors({"W": start, "N": start}), self._told(V))

    def bound(self, state: AscentState) -> NDArray[np.float64]:
        """(p,) what no member's Σ z² exceeds."""
        squares: NDArray[np.float64] = decode(self._blobs.read(state.pooled.bound.sha256))["squares"]
        return squares

    def step(
        self, state: AscentState, G: NDArray[np.float64], samples: float
    ) -> tuple[AscentState, Artifact, float]:
        """One step; gradients of some members stand for those of all.

        Args:
            state: Where the steps stand.
            G: (p, C) Σ G_k of the members that answered.
            samples: Samples these are of.

        Returns:
            The next state, the solution so far ("V", (p, C), packed), and by how much of its length it moved.

        Raises:
            ValueError: The solution is not finite.
        """
        position = decode(self._blobs.read(state.position.sha256))
        A = unpack_symmetric(decode(self._blobs.read(state.pooled.moments.sha256))["A"], len(G), None)
        at = Ascent(position["W"], position["N"], state.t)
        after = ascend(at, A, G * (state.pooled.samples / samples), self._mu)
        if not np.isfinite(after.N).all():
            raise ValueError("the refined moments are not finite")
        moved = replace(
            state,
            position=self._blobs.put_tensors({"W": after.W, "N": after.N}),
            asked=self._told(after.W),
            t=after.t,
        )
        solution = self._told(after.N)
        change = float(np.linalg.norm(after.N - at.N) / max(1e-12, float(np.linalg.norm(after.N))))
        return moved, solution, change

    def _told(self, V: NDArray[Any]) -> Artifact:
        """A solution as clients get it."""
        return self._blobs.put_tensors(pack_statistics({"V": V.astype(np.float32)}, self._codec))
