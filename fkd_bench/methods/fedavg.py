"""FedAvg."""

from __future__ import annotations

from fkd_bench.methods.averaging import WeightAveraging


class FedAvg(WeightAveraging):
    """Clients minimise cross-entropy, the server averages by n_k."""

    title = "FedAvg"
    source = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
