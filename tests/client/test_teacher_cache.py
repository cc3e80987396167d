"""A teacher found on disk is the one that would be trained, and anything else is trained anew."""

import json

import numpy as np
import pytest

from fkd_client import teacher_cache
from fkd_client.teacher import train_teacher
from fkd_client.teacher_cache import TEACHER_KEYS, TeacherCache, teacher_key
from fkd_common.choices import KdTargets
from tests.client.conftest import make_blobs

C = 5


def taught(cache, config, *, seed=0, classes=(0, 1, 3), v=60):
    train, val = make_blobs(150, list(classes), seed=1), make_blobs(v, list(classes), seed=2)
    return cache(train.h, train.y, val.h, val.y, C, config, threads=1, seed=seed)


@pytest.fixture
def trained(monkeypatch):
    """How often a teacher was trained."""
    calls = []

    def counted(*arguments, **how):
        calls.append(how)
        return train_teacher(*arguments, **how)

    monkeypatch.setattr(teacher_cache, "train_teacher", counted)
    return calls


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kd_targets": KdTargets.IN_SAMPLE},
        {"kd_targets": KdTargets.IN_SAMPLE, "beta": 0.2},
    ],
)
@pytest.mark.parametrize("classes", [(0, 1, 3), (2,)])
def test_a_teacher_comes_back_bit_by_bit(tmp_path, config, trained, changes, classes):
    config = config.model_copy(update=changes)
    first = taught(TeacherCache(tmp_path), config, classes=classes)
    again = taught(TeacherCache(tmp_path), config, classes=classes)
    assert len(trained) == 1
    probe = make_blobs(20, [0, 1, 2], seed=9).h
    assert first.calibrated(probe).tobytes() == again.calibrated(probe).tobytes()
    assert first.soft_source.tobytes() == again.soft_source.tobytes()
    assert (first.oof is None) == (again.oof is None)
    if first.oof is not None:
        assert first.oof.tobytes() == again.oof.tobytes()
    assert (first.reliability, first.present.tolist()) == (again.reliability, again.present.tolist())
    assert json.dumps(vars(first.report)) == json.dumps(vars(again.report))


def test_without_validation_samples_too(tmp_path, config, trained):
    for _ in range(2):
        assert np.isnan(taught(TeacherCache(tmp_path), config, v=0).report.val_accuracy)
    assert len(trained) == 1


def test_other_data_keys_or_seeds_are_another_teacher(tmp_path, config, trained):
    cache = TeacherCache(tmp_path)
    taught(cache, config)
    taught(cache, config, seed=1)
    taught(cache, config, classes=(0, 1))
    taught(cache, config.model_copy(update={"teacher_trees": 3}))
    assert len(trained) == 4
    taught(cache, config.model_copy(update={"rounds": 77}))  # nothing to a teacher
    assert len(trained) == 4


@pytest.mark.scenario(29)
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:50] + b"\0" + b[51:], lambda b: b""])
def test_a_damaged_file_is_noticed_and_replaced(tmp_path, config, trained, damage):
    taught(TeacherCache(tmp_path), config)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    for _ in range(2):
        taught(TeacherCache(tmp_path), config)
    assert len(trained) == 2


def test_a_folder_that_cannot_be_written_costs_a_training(tmp_path, config, trained):
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        taught(TeacherCache(tmp_path / "file"), config)
    assert len(trained) == 2


def test_every_key_that_training_reads_is_part_of_the_digest(config):
    """A key added to training and forgotten here would bring back teachers of another configuration."""
    read = set()

    class Watched:
        def __getattr__(self, name):
            read.add(name)
            return getattr(config, name)

    taught(train_teacher, Watched())
    assert read <= set(TEACHER_KEYS)
    assert teacher_key((), C, config, 0) != teacher_key((), C + 1, config, 0)
