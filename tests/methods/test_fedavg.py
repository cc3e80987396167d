"""FedAvg: weights by n_k, over those that returned."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_bench.methods.averaging import averaged
from fkd_bench.methods.fedavg import FedAvg
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal


def test_the_average_is_weighted_by_samples() -> None:
    uploads = [
        Held("a", 1, {"w": np.array([0.0, 4.0], np.float32), "steps": np.array(3)}),
        Held("b", 3, {"w": np.array([4.0, 0.0], np.float32), "steps": np.array(7)}),
    ]
    average, record = averaged(uploads)
    assert average["w"].tolist() == [3.0, 1.0]
    assert average["steps"] == 7
    assert record["weights"] == {"a": 0.25, "b": 0.75}


def test_only_those_that_returned_count() -> None:
    run = rehearsal.federation()
    play = Rehearsal(FedAvg(run), rehearsal.sites(run))
    record = play.round(1, absent=("site1",)).record
    assert sorted(record["weights"]) == ["site0", "site2"]
    assert sum(record["weights"].values()) == pytest.approx(1)


def test_uploads_without_samples_have_no_average() -> None:
    with pytest.raises(ValueError, match="every n_k is 0"):
        averaged([Held("a", 0, {"w": np.zeros(1, np.float32)})])


def test_it_learns() -> None:
    run = rehearsal.federation()
    play = Rehearsal(FedAvg(run), rehearsal.sites(run)).run(5)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.8
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.8


def test_its_bytes_are_the_networks_both_ways() -> None:
    run = rehearsal.federation(
        d=512, num_classes=10, hidden=(512, 256, 128), dropout=(0.4, 0.3, 0.2), local_steps=1
    )
    play = Rehearsal(FedAvg(run), rehearsal.sites(run, count=1)).run(1)
    assert play.up["site0"] == play.down["site0"] == 1_727_040
