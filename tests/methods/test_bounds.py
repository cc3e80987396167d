"""The two bounds: each site's teacher alone, and one network on the pooled data."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_bench.methods.central import Central
from fkd_bench.methods.fedavg import FedAvg
from fkd_bench.methods.local import Local
from fkd_client.teacher import train_teacher
from fkd_client.teacher_tensors import teacher_of, teacher_tensors
from fkd_common.errors import DataError
from fkd_common.exchange_method import MODEL, Labelled, Site
from fkd_common.tensors import decode, encode
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal

TREES = {"teacher_trees": 15, "teacher_lr": 0.3, "teacher_feature_fraction": 0.5, "min_val": 10}


def _tiny(run: object, n: int) -> Site:
    rows = rehearsal.sites(run)[0].train  # type: ignore[arg-type]
    empty = Labelled(rows.inputs[:0], rows.labels[:0])
    return Site("one", Labelled(rows.inputs[:n], np.zeros(n, np.int64)), empty, seed=1)


# -- local only ---------------------------------------------------------------------------------------


def test_a_teacher_survives_being_written_as_tensors() -> None:
    run = rehearsal.federation(method="local", **TREES)
    site = rehearsal.sites(run)[0]
    made = train_teacher(
        site.train.inputs,
        site.train.labels,
        site.val.inputs,
        site.val.labels,
        4,
        run.config,
        threads=1,
        seed=0,
    ).model
    test = rehearsal.test_set(run)
    back = teacher_of(decode(encode(teacher_tensors(made))), 4, test.inputs.shape[1])
    assert not back.calibration.identity.all()
    assert (back.calibrated(test.inputs) == made.calibrated(test.inputs)).all()


def test_scores_are_logarithms_of_calibrated_probabilities() -> None:
    run = rehearsal.federation(method="local", **TREES)
    play = Rehearsal(Local(run), rehearsal.sites(run)).run(1)
    scores = play.method.scores(play.sites[0].memory["teacher"], rehearsal.test_set(run).inputs)
    assert scores.dtype == np.float32
    assert np.exp(scores).sum(axis=1) == pytest.approx(np.ones(400), abs=1e-5)


def test_it_is_the_teacher_of_fkd_rtm() -> None:
    run = rehearsal.federation(method="local", **TREES)
    site = rehearsal.sites(run)[0]
    model = Local(run).personal_model(site, {})
    made = train_teacher(
        site.train.inputs,
        site.train.labels,
        site.val.inputs,
        site.val.labels,
        4,
        run.config,
        threads=1,
        seed=site.seed,
    )
    inputs = site.val.inputs
    assert (teacher_of(model, 4, inputs.shape[1]).calibrated(inputs) == made.calibrated(inputs)).all()


def test_trees_that_are_not_whole_are_refused_before_lightgbm_sees_them() -> None:
    """LightGBM ends the process over them, and a model's file may have travelled."""
    run = rehearsal.federation(method="local", **TREES)
    site = rehearsal.sites(run)[0]
    method = Local(run)
    model = method.personal_model(site, {})
    for text in (model["booster"][:-200], np.frombuffer(b"tree\n\n", np.uint8)):
        with pytest.raises(DataError, match="teacher cannot be read"):
            method.scores({**model, "booster": text}, site.val.inputs)
    with pytest.raises(DataError, match="max_feature_idx"):
        method.scores(model, site.val.inputs[:, 1:])


def test_it_learns_alone_and_exchanges_nothing() -> None:
    run = rehearsal.federation(method="local", **TREES)
    play = Rehearsal(Local(run), rehearsal.sites(run, skewed=False)).run(2)
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.75
    assert set(play.up.values()) == set(play.down.values()) == {0}
    assert play.method.global_model(play.state) is None
    assert decode(encode({})) == {}


def test_a_one_class_teacher_of_earlier_releases_is_read() -> None:
    """They kept an empty text of trees."""
    run = rehearsal.federation(method="local", **TREES)
    method = Local(run)
    model = method.personal_model(_tiny(run, 2), {})
    inputs = rehearsal.test_set(run).inputs
    kept = {**model, "booster": np.empty(0, np.uint8)}
    assert (method.scores(kept, inputs) == method.scores(model, inputs)).all()


@pytest.mark.parametrize("missing", ["present", "slopes", "temperature", "n_val", "booster"])
def test_a_teacher_that_lacks_something_is_refused(missing: str) -> None:
    run = rehearsal.federation(method="local", **TREES)
    site, method = rehearsal.sites(run)[0], Local(run)
    model = method.personal_model(site, {})
    with pytest.raises(DataError, match=r"teacher cannot be read: it (lacks|knows)"):
        method.scores({name: array for name, array in model.items() if name != missing}, site.val.inputs)


def test_its_teacher_is_the_one_that_the_run_says() -> None:
    run = rehearsal.federation(method="local", teacher="mlp", teacher_epochs=20, min_val=10)
    play = Rehearsal(Local(run), rehearsal.sites(run, skewed=False)).run(1)
    assert "layers.0.weight" in play.sites[0].memory["teacher"]
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.75


@pytest.mark.parametrize("n", [1, 2])
def test_a_site_of_one_class_predicts_it(n: int) -> None:
    run = rehearsal.federation(method="local", **TREES)
    method, site = Local(run), _tiny(run, n)
    model = decode(encode(method.personal_model(site, {})))
    scores = method.scores(model, rehearsal.test_set(run).inputs)
    assert np.isfinite(scores).all()
    assert (scores.argmax(axis=1) == 0).all()


# -- central ------------------------------------------------------------------------------------------


def test_it_makes_as_many_steps_as_a_federation() -> None:
    run = rehearsal.federation(rounds=10, clients_per_round=0.5, min_cohort=1, min_clients=1)
    # 10 rounds, 2 of 4 clients, 20 local steps each
    assert Central(run).federated_steps([5, 5, 500, 500]) == 10 * 2 * 20
    epochs = rehearsal.federation(
        rounds=10, clients_per_round=0.5, local_steps=None, local_epochs=3, min_cohort=1
    )
    # batches of 16: 1 + 2 + 4 + 5 of them an epoch, half of them in a round
    assert Central(epochs).federated_steps([16, 32, 64, 80]) == 10 * 3 * 12 // 2


def test_the_pool_holds_everybody_once() -> None:
    run = rehearsal.federation(method="central", options={"steps": 60})
    play = Rehearsal(Central(run), rehearsal.sites(run))
    record = play.round(1).record
    sizes = {site.name: len(site.train) for site in play.sites}
    assert record["steps"] == 60
    assert record["weights"] == pytest.approx({k: n / sum(sizes.values()) for k, n in sizes.items()})
    assert play.method.everyone(1)


def test_it_learns_every_class_and_later_rounds_change_nothing() -> None:
    run = rehearsal.federation(method="central", options={"steps": 200})
    play = Rehearsal(Central(run), rehearsal.sites(run)).run(1)
    model = play.state[MODEL]
    play.round(2)
    assert play.state[MODEL] is model
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.9
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.9


def test_it_is_the_head_that_others_train() -> None:
    run = rehearsal.federation()
    central, fedavg = Central(run), FedAvg(run)
    assert central.model_is_student
    start = fedavg.start()[MODEL]
    assert all((values == start[name]).all() for name, values in central.start()[MODEL].items())


def test_labels_that_are_no_class_are_refused() -> None:
    method = Central(rehearsal.federation())
    data = {"embeddings": np.zeros((1, 12), np.float32), "labels": np.array([4], np.int32)}
    assert method.flaw(data) == "labels 0...4; expected 0...3"
    assert method.flaw({}) is None


def test_no_data_is_no_model() -> None:
    method = Central(rehearsal.federation())
    nothing = {"embeddings": np.zeros((0, 12), np.float32), "labels": np.zeros(0, np.int32)}
    with pytest.raises(ValueError, match="every n_k is 0"):
        method.aggregate(method.start(), [Held("a", 0, nothing)], 1)


@pytest.mark.parametrize("n", [1, 2])
def test_a_pool_of_one_tiny_site(n: int) -> None:
    run = rehearsal.federation(method="central", options={"steps": 3})
    play = Rehearsal(Central(run), [_tiny(run, n)]).run(2)
    assert all(np.isfinite(values).all() for values in play.state[MODEL].values())


def test_its_bytes_are_the_data_once_and_the_model() -> None:
    run = rehearsal.federation(
        method="central",
        d=512,
        num_classes=10,
        hidden=(512, 256, 128),
        dropout=(0.4, 0.3, 0.2),
        options={"steps": 2},
    )
    play = Rehearsal(Central(run), rehearsal.sites(run, count=1, n=50)).run(2)
    assert play.up["site0"] == len(play.sites[0].train) * (2048 + 4)
    assert play.down["site0"] == 1_727_040
