"""The machine a site runs on: a GPU that is asked for and absent, one that is full, an extractor that differs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fkd_client.cli import choose_device, main
from fkd_client.embedding import block_inputs_cached, embed
from fkd_client.site import Site
from fkd_client.tasks import TaskRunner
from fkd_common.choices import FinetuneScope
from fkd_common.errors import DataError, ExitCode, FkdError, UsageError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.scenario(41)
@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "cuda:7", "gpu"])
def test_a_device_that_is_not_there_is_refused(no_gpu, asked):
    """Scenario 41."""
    with pytest.raises(UsageError, match=f"--device '?{asked}"):
        choose_device(asked)


@pytest.mark.scenario(41)
def test_a_device_that_is_not_there_ends_with_exit_code_2_before_the_coordinator_is_asked(
    no_gpu, monkeypatch, capsys, tmp_path, seen
):
    """Scenario 41."""
    monkeypatch.delenv("FKD_DEVICE", raising=False)
    code = main(["--data", str(tmp_path), "--server", "127.0.0.1:1", "--device", "cuda"])
    assert code == ExitCode.USAGE
    assert "use cpu or auto" in capsys.readouterr().err
    seen(f"--device cuda without CUDA: exit {code:d}")


@pytest.mark.scenario(41)
def test_auto_falls_back_to_the_cpu(no_gpu):
    assert choose_device("auto") == "cpu"


class Full(torch.nn.Module):
    """A device on which batches above `limit` do not fit."""

    def __init__(self, inner, limit):
        super().__init__()
        self.inner, self.limit, self.spec, self.sizes = inner, limit, inner.spec, []

    def _taken(self, x):
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x

    def forward(self, x):
        return self.inner(self._taken(x))

    def stem_forward(self, x, scope):
        return self.inner.stem_forward(self._taken(x), scope)


@pytest.mark.scenario(41)
def test_a_full_device_gets_batches_it_can_take_down_to_one_image(extractor, pictures, seen):
    """Scenario 41: 8, 4, 2, 1, and then one by one."""
    full = Full(extractor, 1)
    found = embed(full, pictures.images, batch_size=8)
    np.testing.assert_allclose(found, embed(extractor, pictures.images), rtol=1e-4, atol=1e-5)
    assert full.sizes == [8, 4, 2] + [1] * len(pictures.images)
    seen("out of memory: batches 8, 4, 2, 1; same embeddings")


@pytest.mark.scenario(41)
def test_activations_for_personalisation_fall_back_too(extractor, pictures, tmp_path):
    full = Full(extractor, 5)
    cached = block_inputs_cached(tmp_path, "e" * 64, full, pictures, FinetuneScope.BLOCK)
    assert len(cached) == len(pictures.images)


@pytest.mark.scenario(41)
def test_a_task_for_which_memory_does_not_suffice_is_reported_and_the_client_goes_on(config):
    """Scenario 41: the coordinator hears of a failed task, not of a vanished client."""

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    runner = TaskRunner(SimpleNamespace(name="a"), None, SimpleNamespace(config=config), lambda *_: None)
    runner._handlers[1] = full
    with pytest.raises(FkdError, match="out of memory") as failed:
        runner.run(pb.Task(key=types.TaskKey(round=1, phase=1)))
    assert failed.value.reason == "OUT_OF_MEMORY"


@pytest.mark.scenario(35)
def test_an_extractor_that_gives_other_embeddings_is_refused_before_training(
    extractor, pictures, seen, tmp_path
):
    """Scenario 35: a silent difference would poison residuals and moments of everybody."""
    anchors = embed(extractor, pictures.images)

    def site(embeddings):
        return Site("s", pictures, extractor, "", pictures.images, embeddings, 2, tmp_path, "cpu", 1)

    site(anchors).check_extractor()
    with pytest.raises(DataError, match="differ from the coordinator's by") as refused:
        site(anchors * np.float32(1.1)).check_extractor()
    seen(f"client: exit {refused.value.exit_code:d} before training")
