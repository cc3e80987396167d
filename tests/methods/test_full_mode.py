"""Full mode: every method that exchanges the whole ResNet18 plays rounds over images."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from fkd_bench.methods.dafkd import DaFKD
from fkd_bench.methods.fedavg import FedAvg
from fkd_bench.methods.feddf import FedDF
from fkd_bench.methods.fedgkd import FedGKD
from fkd_bench.methods.fedmkd import FedMKD
from fkd_bench.methods.fedntd import FedNTD
from fkd_bench.methods.fedprox import FedProx
from fkd_bench.methods.pfedfda import PFedFDA
from fkd_client.extractor import dump_extractor
from fkd_client.pretrain import initial_trunk
from fkd_common.config import RunConfig
from fkd_common.exchange_method import MODEL, ExchangeMethod, Federation, Labelled, Site
from fkd_common.extractor_artifact import ExtractorSpec
from fkd_common.method.metrics import accuracy
from tests.methods.rehearsal import Rehearsal

torch.set_num_threads(1)
W = 44_765_128
"""ResNet18 with the 7×7 stem, ten classes and BatchNorm's buffers."""


@cache
def extractor() -> bytes:
    spec = ExtractorSpec("resnet18", 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return dump_extractor(initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict(), spec)


def images(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)


def federation(options: dict[str, float], **keys: str) -> Federation:
    config = RunConfig(
        method="x",
        model="full",
        options=options,
        rounds=2,
        local_steps=1,
        batch_size=8,
        finetune_epochs=1,
        **keys,
    )
    return Federation(config, 10, images(6, 99), np.zeros((6, 512), np.float32), extractor)


def site(name: str, seed: int, classes: int = 3) -> Site:
    labels = 9 - np.arange(10) % classes
    return Site(name, Labelled(images(8, seed), labels[:8]), Labelled(images(2, seed + 1), labels[8:]), seed)


@pytest.mark.parametrize(
    ("method", "options", "rounds", "up", "down"),
    [
        (FedAvg, {}, 1, W, W),
        (FedProx, {}, 1, W, W),
        (FedNTD, {}, 1, W, W),
        (FedDF, {"steps": 1}, 1, W, W),
        (FedMKD, {"steps": 1}, 1, W, W),
        (DaFKD, {"steps": 1}, 1, W + 4 * 513, W),
        (FedGKD, {}, 2, W, 2 * W),
    ],
)
def test_whole_networks_are_trained_and_exchanged(
    method: type[ExchangeMethod], options: dict[str, float], rounds: int, up: int, down: int
) -> None:
    assert method.full_mode
    made = method(federation(options))
    play = Rehearsal(made, [site("a", 1), site("b", 11)])
    # From a classifier that is no longer zero on, so that its gradient reaches the trunk.
    fc = np.random.default_rng(0).normal(0, 0.05, (10, 512)).astype(np.float32)
    start = play.state[MODEL] = {**play.state[MODEL], "fc.weight": fc}
    for number in range(1, rounds + 1):
        play.up.clear()
        play.down.clear()
        play.round(number)
    assert play.up == {"a": up, "b": up}
    assert play.down == {"a": down, "b": down}
    model = made.global_model(play.state)
    assert model is not None
    for name in ("trunk.bn1.weight", "fc.weight"):
        assert np.abs(model[name] - start[name]).max() > 1e-4, name
    scores = made.scores(model, images(3, 5))
    assert scores.shape == (3, 10)
    assert np.isfinite(scores).all()
    assert not made.model_is_student


@pytest.mark.parametrize("method", [FedAvg, pytest.param(PFedFDA, marks=pytest.mark.slow)])
def test_whole_networks_are_packed_where_the_run_says_so(method: type[ExchangeMethod]) -> None:
    """Filters of convolutions are rows of matrices: int4 is about an eighth of fp32, and int8 a quarter at most."""
    plain, coded = (
        Rehearsal(method(federation({}, **keys)), [site("a", 1), site("b", 11)]).run(1)
        for keys in ({}, {"update_codec": "int4", "model_codec": "int8"})
    )
    beside = 0 if method is FedAvg else 4 * (10 * 512 + 512 * 512)
    assert coded.up["a"] - beside < 0.14 * W
    assert coded.down["a"] - beside < 0.26 * W
    group = plain.method.trained_group
    start = plain.method.start()[group]
    for name, values in plain.state[group].items():
        if values.ndim > 1:
            off = np.linalg.norm(values - coded.state[group][name])
            assert off < 0.25 * np.linalg.norm(values - start[name]) + 0.01 * np.linalg.norm(values), name


def test_the_whole_network_is_fine_tuned_where_that_helps() -> None:
    made, own = FedAvg(federation({})), site("a", 1, classes=1)
    received = made.start()  # says class 0 of everything
    personal = made.personal_model(own, received)
    assert accuracy(made.scores(personal, own.val.inputs), own.val.labels) == 1
    assert (personal["trunk.bn1.running_var"] == received[MODEL]["trunk.bn1.running_var"]).all()
