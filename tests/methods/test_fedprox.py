"""FedProx: the proximal term holds clients back."""

from __future__ import annotations

import numpy as np

from fkd_bench.methods.fedavg import FedAvg
from fkd_bench.methods.fedprox import FedProx
from fkd_common.exchange_method import MODEL
from fkd_common.tensors import Tensors
from tests.methods import rehearsal
from tests.methods.rehearsal import Rehearsal


def _update(options: dict[str, float], method: type = FedProx) -> Tensors:
    run = rehearsal.federation(method=method.title.lower(), options=options)
    made, site = method(run), rehearsal.sites(run)[0]
    start = made.start()
    # From a trained model on, so that the pull towards it can be seen.
    trained = {MODEL: made.local_update(site, start, 1)}
    after = made.local_update(site, trained, 2)
    return {name: after[name] - trained[MODEL][name] for name in after if after[name].dtype == np.float32}


def _length(update: Tensors) -> float:
    return float(np.sqrt(sum((values**2).sum() for name, values in update.items() if "running" not in name)))


def test_without_the_term_it_is_fedavg() -> None:
    prox, avg = _update({"mu": 0.0}), _update({}, FedAvg)
    assert all((prox[name] == avg[name]).all() for name in avg)


def test_the_stronger_the_term_the_shorter_the_update() -> None:
    lengths = [_length(_update({"mu": mu})) for mu in (0.0, 0.1, 10.0)]
    assert lengths[0] > lengths[1] > lengths[2]


def test_it_learns() -> None:
    run = rehearsal.federation(method="fedprox")
    play = Rehearsal(FedProx(run), rehearsal.sites(run)).run(5)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.8
