"""What methods whose networks stay at home share: sites exchange outputs, and weights never travel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_bench.methods.networks import Networks, cross_entropy
from fkd_common.exchange_method import ExchangeMethod, Federation, Site, State
from fkd_common.tensors import Tensors

PRIVATE = "private"
"""Where a site remembers its network."""


class PrivateNetworks(ExchangeMethod):
    """Every site keeps a network of its own, here always of the student's layout; there is no global model."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.networks = Networks(federation)

    def start(self) -> State:
        """Nothing is known yet."""
        return {}

    def global_model(self, state: State) -> Tensors | None:
        """None: sites are scored one by one."""
        return None

    def private(self, site: Site) -> Tensors:
        """The site's network as its last round left it, or before its first one trained on its data alone."""
        if PRIVATE in site.memory:
            return site.memory[PRIVATE]
        return self.trained(site, self.networks.start(), 0)

    def trained(self, site: Site, network: Tensors, round_number: int) -> Tensors:
        """The run's local training of a network by cross-entropy."""
        return self.networks.train(site, network, cross_entropy, round_number)

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """Logits in eval mode."""
        return self.networks.logits(model, inputs, device)


def passes(n: int, size: int, epochs: int) -> int:
    """Mini-batches in `epochs` passes over n rows; a last batch of one row is left out, unless it is all there is."""
    full, rest = divmod(n, size)
    return epochs * (full + (rest > 1 or n == 1))
