"""Methods that average networks under FKD-RTM's codecs: what is packed, what it costs, who cannot."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from fkd_bench.methods.averaging import WeightAveraging
from fkd_bench.methods.dafkd import DaFKD
from fkd_bench.methods.fedavg import FedAvg
from fkd_bench.methods.feddf import FedDF
from fkd_bench.methods.fedgkd import TEACHER, FedGKD
from fkd_bench.methods.fedmkd import FedMKD
from fkd_bench.methods.fedntd import FedNTD
from fkd_bench.methods.fedprox import FedProx
from fkd_common.choices import UNCODED
from fkd_common.config import RunConfig
from fkd_common.errors import UsageError
from fkd_common.exchange_method import MODEL, ExchangeMethod
from fkd_common.method_registry import check_codecs
from tests.methods import rehearsal
from tests.methods.rehearsal import Rehearsal

CODED = {"update_codec": "int4", "model_codec": "int8"}
WIDE = {"hidden": (64, 64), "dropout": (0.1, 0.0)}
"""Wide enough that a matrix is more than its scales."""


def play(kind: type[ExchangeMethod], rounds: int = 3, **keys: Any) -> Rehearsal:
    run = rehearsal.federation(**WIDE, **keys)
    return Rehearsal(kind(run), rehearsal.sites(run)).run(rounds)


@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedNTD, FedDF, FedMKD, DaFKD, FedGKD])
def test_it_learns_as_well_from_a_fraction_of_the_bytes(kind: type[ExchangeMethod]) -> None:
    plain, coded = play(kind), play(kind, **CODED)
    test = rehearsal.test_set(plain.method.federation)
    assert coded.global_accuracy(test) > plain.global_accuracy(test) - 0.05
    for site in plain.up:
        assert coded.up[site] < plain.up[site] / 3  # vectors and scales are a good part of so small a network
        assert coded.down[site] < plain.down[site] / 2


def test_without_codecs_nothing_is_packed() -> None:
    made = play(FedAvg).method
    assert (made.config.update_codec, made.config.model_codec) == ("fp32", "fp32")


def test_the_coordinator_goes_on_from_what_it_sent() -> None:
    """Packing what was unpacked changes nothing, so roundings do not add up from round to round."""
    coded = play(FedAvg, **CODED)
    again = coded.as_sent(MODEL, coded.state[MODEL])
    assert all(np.allclose(again[name], values, rtol=1e-6) for name, values in coded.state[MODEL].items())


def test_teachers_go_down_packed_too() -> None:
    coded = play(FedGKD, rounds=2, **CODED)
    packed = [rehearsal.num_bytes(coded.codecs.pack_group(g, coded.state[g])) for g in (MODEL, TEACHER)]
    assert packed[0] == pytest.approx(packed[1], rel=0.2)
    history = coded.state["history/1"]
    assert coded.codecs.pack_group("history/0", history) is history


def test_what_is_no_network_goes_beside_it_as_it_is() -> None:
    run = rehearsal.federation(**WIDE, **CODED)
    made, site = DaFKD(run), rehearsal.sites(run)[0]
    rehearsed = Rehearsal(made, [site])
    sent = made.local_update(site, rehearsed.received(1, site.name), 1)
    layout, start = made.upload_layout(1, len(site.train)), rehearsed.state[MODEL]
    packed = rehearsed.codecs.pack_upload(sent, start, layout, np.random.default_rng(0))
    got = rehearsed.codecs.unpack_upload(dict(packed), start, layout)
    assert got.keys() == layout.keys()
    for name in ("discriminator.weight", "discriminator.bias"):
        assert (got[name] == sent[name]).all()
        assert (packed[f"beside/{name}"] == sent[name]).all()


class HeadsStayAtHome(FedAvg):
    """FedPer: the last layer never leaves the site."""

    def upload_layout(self, round_number: int, num_samples: int) -> Any:
        whole = super().upload_layout(round_number, num_samples)
        return {name: spec for name, spec in whole.items() if not name.startswith("output.")}

    def local_update(self, site: Any, received: Any, round_number: int) -> Any:
        whole = super().local_update(site, received, round_number)
        return {name: values for name, values in whole.items() if not name.startswith("output.")}

    def flaw(self, tensors: Any) -> str | None:
        return None

    def aggregate(self, state: Any, uploads: Any, round_number: int) -> Any:
        made = super().aggregate(state, uploads, round_number)
        made.groups[MODEL].update({n: v for n, v in state[MODEL].items() if n.startswith("output.")})  # type: ignore[attr-defined]
        return made


def test_a_part_of_the_network_is_packed_as_a_whole_one_is() -> None:
    plain, coded = play(HeadsStayAtHome), play(HeadsStayAtHome, **CODED)
    assert all(coded.up[site] < plain.up[site] / 3 for site in plain.up)


# -- who cannot -----------------------------------------------------------------------------------

WITHOUT = ["central", "fed3r", "fed3r-rf", "fedict", "fedmd", "fedtkd", "local"]


@pytest.mark.parametrize("key", ["update_codec", "model_codec"])
@pytest.mark.parametrize("method", WITHOUT)
def test_a_method_without_networks_on_the_wire_refuses(method: str, key: str) -> None:
    check_codecs(RunConfig(method=method))
    check_codecs(RunConfig(method=method, **{key: "fp32"}))
    with pytest.raises(
        UsageError, match=rf"^{method} with model head has no network .* leave out {key} = int8$"
    ):
        check_codecs(RunConfig(method=method, **{key: "int8"}))


def test_all_others_take_them() -> None:
    for entry in entry_points(group="fkd.methods"):
        if entry.name not in WITHOUT:
            check_codecs(RunConfig(method=entry.name, **CODED))
            assert issubclass(entry.load(), WeightAveraging) or entry.name == "pfedfda"


def test_only_fkd_rtm_has_codecs_unless_they_are_given() -> None:
    assert RunConfig().update_codec == "int4"
    assert RunConfig().model_codec == "int8"
    other = RunConfig(method="fedavg", model_codec="fp16")
    assert (other.update_codec, other.model_codec) == (UNCODED["update_codec"], "fp16")
    assert RunConfig(**other.model_dump()) == other
    assert RunConfig.model_validate_json(other.model_dump_json()) == other
