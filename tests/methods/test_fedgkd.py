"""FedGKD: the teacher is the average of the last M global models."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_bench.methods.fedavg import FedAvg
from fkd_bench.methods.fedgkd import TEACHER, FedGKD
from fkd_common.exchange_method import MODEL, Aggregate, Federation, Labelled, Site
from fkd_common.tensors import Tensors
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal


def _run(**options: float) -> Federation:
    return rehearsal.federation(method="fedgkd", options=options)


def test_the_teacher_is_the_average_of_the_last_m_models() -> None:
    made, state, teachers = FedGKD(_run(buffer=3)), {}, []
    for number in range(1, 6):
        # Two clients whose average by n_k is the square of the round's number.
        uploads = [
            Held("a", 1, {"w": np.array([number**2 - 3], np.float32)}),
            Held("b", 3, {"w": np.array([number**2 + 1], np.float32)}),
        ]
        result: Aggregate = made.aggregate(state, uploads, number)
        state |= result.groups
        assert state[MODEL]["w"] == number**2
        teachers.append(float(state[TEACHER]["w"][0]))
    assert teachers == pytest.approx([1, (1 + 4) / 2, (1 + 4 + 9) / 3, (4 + 9 + 16) / 3, (9 + 16 + 25) / 3])
    assert len(state) == 3 + 2


def _update(run: Federation, method: type[FedAvg] | type[FedGKD] = FedGKD, teacher: bool = True) -> Tensors:
    """A second round from a trained model, beside an older teacher."""
    made, site = method(run), rehearsal.sites(run)[0]
    older = made.local_update(site, made.start(), 1)
    newer = made.local_update(site, {MODEL: older}, 1)
    return made.local_update(site, {MODEL: newer, **({TEACHER: older} if teacher else {})}, 2)


def test_without_the_term_it_is_fedavg() -> None:
    gkd, avg = _update(_run(gamma=0.0)), _update(rehearsal.federation(), FedAvg)
    assert all((gkd[name] == avg[name]).all() for name in avg)


def test_the_teacher_pulls_towards_what_it_says() -> None:
    run = _run()
    made, site = FedGKD(run), rehearsal.sites(run)[0]
    teacher = made.local_update(site, made.start(), 1)
    said = made.scores(teacher, site.train.inputs)
    apart = []
    for gamma in (0.0, 1.0, 100.0):
        after = FedGKD(_run(gamma=gamma)).local_update(
            site, {MODEL: made.start()[MODEL], TEACHER: teacher}, 2
        )
        apart.append(float(np.abs(made.scores(after, site.train.inputs) - said).mean()))
    assert apart[0] > apart[1] > apart[2]


def test_in_round_1_there_is_no_teacher() -> None:
    run, plain = _run(gamma=100.0), rehearsal.federation()
    first = FedGKD(run).local_update(rehearsal.sites(run)[0], FedGKD(run).start(), 1)
    same = FedAvg(plain).local_update(rehearsal.sites(plain)[0], FedAvg(plain).start(), 1)
    assert all((first[name] == same[name]).all() for name in same)


def test_with_a_buffer_of_one_the_received_model_teaches() -> None:
    run = _run(buffer=1, gamma=1.0)
    play = Rehearsal(FedGKD(run), rehearsal.sites(run)).run(2)
    assert play.state.keys() == {MODEL}
    taught, untaught = _update(run, teacher=False), _update(_run(gamma=0.0))
    assert any((taught[name] != untaught[name]).any() for name in taught)


def test_it_learns() -> None:
    run = _run()
    play = Rehearsal(FedGKD(run), rehearsal.sites(run)).run(5)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.8
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.8


def test_sites_and_cohorts_as_small_as_they_come() -> None:
    run = _run()
    h, y = rehearsal.clusters(20, run.embedding_dim, run.num_classes, 1)
    none = Labelled(h[:0], y[:0])
    single = Site("single", Labelled(h[:1], y[:1]), none, seed=1)
    one_class = Site("one-class", Labelled(h, np.full(20, 2)), none, seed=2)
    play = Rehearsal(FedGKD(run), [single, one_class])
    play.round(1, absent=("single",))
    play.round(2, absent=("one-class",))
    play.round(3)
    assert all(np.isfinite(values).all() for group in play.state.values() for values in group.values())
    assert 0 <= play.personal_accuracy(rehearsal.test_set(run)) <= 1


@pytest.mark.parametrize(("buffer", "models"), [(5, 2), (1, 1)])
def test_bytes(buffer: int, models: int) -> None:
    run = rehearsal.federation(
        method="fedgkd", options={"buffer": buffer}, d=512, num_classes=10, hidden=(512, 256, 128),
        dropout=(0.4, 0.3, 0.2), local_steps=1,
    )  # fmt: skip
    play = Rehearsal(FedGKD(run), rehearsal.sites(run, count=1)).run(1)
    assert (play.up["site0"], play.down["site0"]) == (1_727_040, 1_727_040)
    play.round(2)
    assert play.up["site0"] == 2 * 1_727_040
    assert play.down["site0"] == (1 + models) * 1_727_040


def test_the_personal_model_needs_no_teacher() -> None:
    run = _run()
    play = Rehearsal(FedGKD(run), rehearsal.sites(run)).run(run.config.rounds)
    assert play.received(run.config.rounds, "site0").keys() == {MODEL, TEACHER}
    assert play.received(run.config.rounds + 1, "site0").keys() == {MODEL}
