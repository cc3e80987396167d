"""FED3R-RF."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fkd_bench.methods.fed3r import FED3R
from fkd_common import exchange_method
from fkd_common.choices import MomentFeatures
from fkd_common.method.moments import moment_vector
from fkd_common.method.residuals import Standardiser


class FED3RRF(FED3R):
    """FED3R on z = [ReLU(h̄R + b); h̄; 1], R and b random and the same everywhere, from the run's seed.

    R has entries N(0, 1/d), so that h̄R has a variance near 1 for standardised embeddings, and b has N(0, 1/4).
    The paper's random features approximate a Gaussian kernel; these are as cheap, and h̄ stays among them. Uploads
    grow with the square of p = `features` + d + 1: 4.6 MB with 1000 features and 41 MB with 4000 (d = 512, C = 10).
    """

    title = "FED3R-RF"

    class Options(exchange_method.Options):
        """Of FED3R-RF."""

        features: int = Field(1000, ge=1, le=20_000)
        """Random features, besides the embedding."""

    def p(self, d: int) -> int:
        """Length of z for d-dimensional embeddings."""
        return int(self.options.features) + d + 1

    def z(self, embeddings: NDArray[np.float32], standardiser: Standardiser) -> NDArray[np.float32]:
        """(n, p) features of (n, d) embeddings."""
        h = standardiser.apply(embeddings)
        R, b = random_layer(self.config.seed, h.shape[1], self.options.features)
        hidden = h @ R
        hidden += b
        np.maximum(hidden, 0, out=hidden)
        return moment_vector((hidden,), h, MomentFeatures.LAST)


@lru_cache(maxsize=4)
def random_layer(seed: int, d: int, features: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """R, (d, features), and b, (features,); float32, equal for equal arguments."""
    rng = np.random.default_rng([seed, features])
    R = rng.standard_normal((d, features), np.float32) / np.float32(np.sqrt(d))
    return R, rng.standard_normal(features, np.float32) * np.float32(0.5)
