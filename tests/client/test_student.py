from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fkd_client.student import distillation_loss, outputs, soft_targets, train_student
from fkd_client.student_network import Student, drop, student_of
from fkd_common.choices import AbsentClasses, Norm
from fkd_common.errors import FkdError
from fkd_common.method import soft_targets as reference
from fkd_common.method.probabilities import softmax
from fkd_common.method.student_layout import initial_student, student_layout
from tests.client.conftest import make_blobs

C = 4
ALL = np.arange(C)


def start(config, seed=0):
    return initial_student(seed, 16, config.hidden, C, config.norm)


def trained(config, n=50, seed=1, **changes):
    blobs = make_blobs(n, [0, 1, 2, 3], seed=2)
    soft = 0.8 * np.eye(C)[blobs.y] + 0.05
    given = {"round_number": 1, "seed": seed} | changes
    return train_student(start(config), blobs.h, blobs.y, soft, ALL, config, **given)


def same_bits(a, b):
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.mark.parametrize("norm", Norm)
def test_state_dict_is_the_payload_layout(config, norm):
    config = config.model_copy(update={"norm": norm})
    layout = student_layout(16, config.hidden, C, norm)
    state = Student(16, C, config).load_state(start(config)).dump_state()
    assert list(state) == list(layout)
    assert [(a.shape, a.dtype.name) for a in state.values()] == [(s.shape, s.dtype) for s in layout.values()]


def test_a_loaded_state_comes_back_bit_for_bit(config):
    state = start(config)
    assert same_bits(student_of(state, config).dump_state(), state)


def test_a_state_of_another_shape_is_refused(config):
    state = start(config)
    state["output.bias"] = np.zeros(C + 1, np.float32)
    with pytest.raises(FkdError, match=r"does not fit the run configuration: output\.bias"):
        student_of(state, config)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_torch_loss_equals_the_numpy_reference(alpha):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(7, C)) * 3, rng.integers(0, C, 7)
    soft = reference.smooth(rng.dirichlet(np.ones(C), 7), 2.0)
    soft[0] = [1, 0, 0, 0]
    found = distillation_loss(torch.tensor(logits), torch.tensor(soft), torch.tensor(labels), 2.0, alpha)
    assert float(found) == pytest.approx(
        reference.distillation_loss(logits, soft, labels, 2.0, alpha), abs=1e-6
    )


def test_outputs_are_those_of_the_network_in_eval_mode(config):
    state = trained(config)
    h = make_blobs(30, [0, 1], seed=5).h
    found = outputs(state, h, config)
    with torch.inference_mode():
        expected = student_of(state, config)(torch.tensor(h))
    np.testing.assert_allclose(found.logits, expected, rtol=1e-5, atol=1e-6)
    assert [a.shape for a in found.hidden] == [(30, 16), (30, 8)]
    by_hand = found.hidden[-1] @ state["output.weight"].T + state["output.bias"]
    np.testing.assert_allclose(by_hand, found.logits, rtol=1e-5, atol=1e-5)


def test_training_learns_and_leaves_the_received_state_alone(config):
    config = config.model_copy(update={"local_epochs": 20, "lr": 0.01})
    received = start(config)
    kept = {k: v.copy() for k, v in received.items()}
    blobs, test = make_blobs(200, [0, 1, 2, 3], seed=2), make_blobs(100, [0, 1, 2, 3], seed=7)
    state = train_student(received, blobs.h, blobs.y, np.eye(C)[blobs.y], ALL, config, round_number=1, seed=0)
    assert same_bits(received, kept)
    assert (outputs(state, test.h, config).logits.argmax(1) == test.y).mean() > 0.8


def test_training_twice_gives_equal_bits_and_another_round_or_seed_does_not(config):
    assert same_bits(trained(config), trained(config))
    assert not same_bits(trained(config), trained(config, seed=2))
    assert not same_bits(trained(config), trained(config, round_number=2))


def test_clients_training_in_threads_give_the_bits_they_give_alone(config):
    alone = [trained(config, seed=s) for s in range(4)]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda s: trained(config, seed=s), range(4)))
    assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_local_steps_override_epochs(config):
    steps = config.model_copy(update={"local_steps": 3})
    assert trained(steps)["layers.0.norm.num_batches_tracked"] == 3
    assert trained(config)["layers.0.norm.num_batches_tracked"] == 2 * 4  # 50 samples, batches of 16


def test_a_last_batch_of_one_sample_is_skipped(config):
    assert trained(config, n=33)["layers.0.norm.num_batches_tracked"] == 2 * 2


@pytest.mark.scenario(38)
def test_a_single_sample_trains_with_the_received_statistics(config):
    state = trained(config, n=1)
    assert state["layers.0.norm.num_batches_tracked"] == 0
    assert state["layers.0.norm.running_mean"].tolist() == [0.0] * 16
    assert np.abs(state["output.bias"]).max() > 0
    assert all(np.isfinite(a).all() for a in state.values())


def test_absent_classes_get_the_received_students_mass(config):
    state = trained(config)
    blobs = make_blobs(20, [0, 1], seed=3)
    soft = np.tile([0.5, 0.3, 0.1, 0.1], (20, 1))
    completed = soft_targets(state, blobs.h, soft, np.array([0, 1]), config)
    received = softmax(outputs(state, blobs.h, config).logits, config.temperature)
    np.testing.assert_allclose(completed[:, 2:], received[:, 2:], atol=1e-12)
    np.testing.assert_allclose(completed.sum(1), 1, atol=1e-12)
    literal = config.model_copy(update={"absent_classes": AbsentClasses.LITERAL})
    np.testing.assert_allclose(
        soft_targets(state, blobs.h, soft, np.array([0, 1]), literal),
        reference.smooth(soft, config.temperature),
        atol=1e-12,
    )


@pytest.mark.scenario(10)
def test_a_loss_that_is_not_finite_is_an_error(config):
    blobs = make_blobs(20, [0, 1], seed=3)
    h = blobs.h.copy()
    h[3] = np.nan
    with pytest.raises(FkdError, match="not finite in round 2"):
        train_student(start(config), h, blobs.y, np.full((20, C), 0.25), ALL, config, round_number=2, seed=0)


def test_dropout_drops_its_share_and_keeps_the_mean():
    x = drop(torch.ones(500, 401), 0.4, torch.Generator().manual_seed(0))
    assert x.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert float((x == 0).float().mean()) == pytest.approx(0.4, abs=0.01)
    assert float(x.mean()) == pytest.approx(1.0, abs=0.01)
