"""A teacher found on disk is the one that would be trained, and anything else is trained anew."""

import hashlib
import json
import os
import re
import time

import numpy as np
import pytest

from fkd_client import teacher_cache
from fkd_client.teacher import train_teacher
from fkd_client.teacher_cache import TEACHER_KEYS, TeacherCache, teacher_key
from fkd_common.artifacts import TEMPORARY
from fkd_common.choices import KdTargets, TeacherKind
from fkd_common.tensors import decode_writeable, encode, metadata_of
from tests.client.conftest import make_blobs

C = 5


@pytest.fixture(params=TeacherKind)
def config(config, request):
    return config.model_copy(update={"teacher": request.param, "teacher_epochs": 3})


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
    its_own, anothers = {"teacher_trees": 3}, {"teacher_epochs": 2}
    if config.teacher is TeacherKind.MLP:
        its_own, anothers = anothers, its_own
    taught(cache, config.model_copy(update=its_own))
    assert len(trained) == 4
    taught(cache, config.model_copy(update={"rounds": 77}))  # nothing to a teacher
    taught(cache, config.model_copy(update=anothers))
    assert len(trained) == 4
    other = TeacherKind.TREES if config.teacher is TeacherKind.MLP else TeacherKind.MLP
    taught(cache, config.model_copy(update={"teacher": other}))
    assert len(trained) == 5


@pytest.mark.scenario(29)
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:50] + b"\0" + b[51:], lambda b: b""])
def test_a_damaged_file_is_noticed_and_replaced(tmp_path, config, trained, damage):
    taught(TeacherCache(tmp_path), config)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    for _ in range(2):
        taught(TeacherCache(tmp_path), config)
    assert len(trained) == 2


def resealed(file, change):
    """The same file with its content changed, and a seal that fits: as a fault of a program would leave it."""
    blob = file.read_bytes()[32:]
    tensors, numbers = decode_writeable(blob), json.loads(metadata_of(blob)["numbers"])
    change(tensors, numbers)
    blob = encode(tensors, {"numbers": json.dumps(numbers)})
    file.write_bytes(hashlib.sha256(blob).digest() + blob)


def in_text(edit):
    def change(tensors, numbers):
        text = edit(tensors["booster"].tobytes().decode())
        tensors["booster"] = np.frombuffer(text.encode(), np.uint8)

    return change


def without(name):
    return lambda tensors, numbers: tensors.pop(name)


def with_array(name, edit):
    return lambda tensors, numbers: tensors.update({name: edit(tensors[name])})


def with_number(name, value):
    return lambda tensors, numbers: numbers.update({name: value})


def renamed(old, new):
    return lambda tensors, numbers: tensors.update({new: tensors.pop(old)})


WRONG_TREES = {
    "trees cut in the middle": in_text(lambda t: t[: t.index("Tree=4") + 60]),
    "trees cut between two": in_text(lambda t: t[: t.index("Tree=4")]),
    "no end": in_text(lambda t: t[: t.index("end of trees")]),
    "a tree is missing": in_text(lambda t: t[: t.index("Tree=4")] + t[t.index("Tree=5") :]),
    "a value is no number": in_text(lambda t: re.sub(r"leaf_value=\S", "leaf_value=x", t, count=1)),
    "a leaf is missing": in_text(
        lambda t: re.sub(r"leaf_value=\S+ ", lambda m: "leaf_value=" + " " * (len(m[0]) - 11), t, count=1)
    ),
    "a split of no column": in_text(
        lambda t: re.sub(r"(split_feature=[^\n]*?\b)1\d", r"\g<1>99", t, count=1)
    ),
    "a child that is none": in_text(lambda t: re.sub(r"left_child=\S", "left_child=9", t, count=1)),
    "a child that is its own parent": in_text(
        lambda t: re.sub(r"left_child=\S+", lambda m: "left_child=0".ljust(len(m[0])), t, count=1)
    ),
    "other classes": in_text(lambda t: t.replace("num_class=3", "num_class=2")),
    "empty text": in_text(lambda t: ""),
    "no text": with_array("booster", lambda a: np.full(100, 255, np.uint8)),
    "no trees": without("booster"),
    "trees beside weights": lambda tensors, numbers: tensors.update(
        {
            "layers.0.weight": np.zeros((16, 3)),
            "layers.0.bias": np.zeros(3),
            "booster": tensors["booster"][:9],
        }
    ),
    "another kind of teacher": lambda tensors, numbers: tensors.update(
        {"layers.0.weight": np.zeros((16, 3)), "layers.0.bias": np.zeros(3), "trees": tensors.pop("booster")}
    ),
}
WRONG_MLP = {
    "no weights": without("layers.0.weight"),
    "no biases": without("layers.1.bias"),
    "a layer is missing": lambda tensors, numbers: [tensors.pop(f"layers.1.{n}") for n in ("weight", "bias")],
    "no last layer": lambda tensors, numbers: [tensors.pop(f"layers.2.{n}") for n in ("weight", "bias")],
    "a layer of another name": renamed("layers.1.bias", "layers.one.bias"),
    "weights of fewer columns": with_array("layers.0.weight", lambda a: a[:-1]),
    "weights that do not fit the next": with_array("layers.1.weight", lambda a: a[:, :-1]),
    "too few outputs": lambda tensors, numbers: tensors.update(
        {"layers.2.weight": tensors["layers.2.weight"][:, 1:], "layers.2.bias": tensors["layers.2.bias"][1:]}
    ),
    "weights in one row": with_array("layers.0.weight", lambda a: a.ravel()),
    "weights of another type": with_array("layers.0.weight", lambda a: a.astype(np.float32)),
    "weights that are not finite": with_array("layers.2.weight", lambda a: a * np.inf),
    "biases that are not finite": with_array("layers.0.bias", lambda a: a * np.nan),
    "biases of another shape": with_array("layers.0.bias", lambda a: a[:, None]),
    "another kind of teacher": lambda tensors, numbers: tensors.update({"booster": np.zeros(9, np.uint8)}),
}
WRONG = {
    "no classes": without("present"),
    "other class ids": with_array("present", lambda a: a + 1),
    "class ids of another type": with_array("present", lambda a: a.astype(np.float32)),
    "too few slopes": with_array("slopes", lambda a: a[:-1]),
    "offsets that are not finite": with_array("offsets", lambda a: a * np.nan),
    "an identity of numbers": with_array("identity", lambda a: a.astype(np.float64)),
    "too few targets": with_array("soft_source", lambda a: a[:-1]),
    "targets of fewer classes": with_array("soft_source", lambda a: a[:, :-1]),
    "targets that are no shares": with_array("soft_source", lambda a: a * -1),
    "targets in a wider type": with_array("soft_source", lambda a: a.astype(np.float64)),
    "a temperature of zero": with_array("temperature", lambda a: a * 0),
    "another D_val": with_array("n_val", lambda a: a + 1),
    "a reliability above one": with_number("reliability", 1.5),
    "a reliability in words": with_number("reliability", "high"),
    "a report of another release": with_number("report", {"val_accuracy": 1.0}),
    "no report": with_number("report", None),
}


@pytest.mark.scenario(29)
@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        *((kind, wrong) for kind in TeacherKind for wrong in WRONG.values()),
        *((TeacherKind.TREES, wrong) for wrong in WRONG_TREES.values()),
        *((TeacherKind.MLP, wrong) for wrong in WRONG_MLP.values()),
    ],
    ids=[*(f"{kind}, {name}" for kind in TeacherKind for name in WRONG), *WRONG_TREES, *WRONG_MLP],
    indirect=["config"],
)
def test_a_sealed_file_of_wrong_content_is_noticed_and_replaced(tmp_path, config, trained, wrong):
    """LightGBM ends the whole process over some of these texts."""
    taught(TeacherCache(tmp_path), config)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    resealed(file, lambda tensors, numbers: None)
    taught(TeacherCache(tmp_path), config)
    assert len(trained) == 1
    resealed(file, wrong)
    for _ in range(2):
        taught(TeacherCache(tmp_path), config)
    assert len(trained) == 2
    assert len(file.read_bytes()) == pytest.approx(len(whole), abs=64)  # seconds differ


def test_what_interrupted_writes_left_is_swept_once_it_is_old(tmp_path, config):
    old, fresh = tmp_path / f"{TEMPORARY}a.teacher.1", tmp_path / f"{TEMPORARY}b.teacher.2"
    for path in (old, fresh):
        path.write_bytes(b"half a teacher")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    taught(TeacherCache(tmp_path), config)
    assert not old.exists()
    assert fresh.exists()  # another client may be writing it


def test_the_cache_keeps_the_teachers_that_were_used_last(tmp_path, config, trained):
    taught(TeacherCache(tmp_path), config)
    (first,) = tmp_path.iterdir()
    cache = TeacherCache(tmp_path, max_bytes=int(2.5 * first.stat().st_size))
    for seed, age in ((1, 300), (2, 200), (3, 100)):
        for path in tmp_path.iterdir():
            os.utime(path, (time.time() - age, time.time() - age))
        taught(cache, config)  # the first is used again and again
        taught(cache, config, seed=seed)
    assert first.exists()
    assert len([*tmp_path.iterdir()]) == 2
    assert len(trained) == 4
    tiny = TeacherCache(tmp_path, max_bytes=1)
    taught(tiny, config, seed=9)
    assert len([*tmp_path.iterdir()]) == 1  # the newest stays, however large


def test_a_folder_that_cannot_be_written_costs_a_training(tmp_path, config, trained):
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        taught(TeacherCache(tmp_path / "file"), config)
    assert len(trained) == 2


def test_every_key_that_training_reads_is_part_of_the_digest(config):
    """A key added to training and forgotten here would bring back teachers of another configuration."""
    read = set()
    config = config.model_copy(
        update={"kd_targets": KdTargets.IN_SAMPLE, "beta": 0.2}
    )  # or beta is not looked at

    class Watched:
        def __getattr__(self, name):
            read.add(name)
            return getattr(config, name)

    taught(train_teacher, Watched())
    assert read == set(TEACHER_KEYS[config.teacher])
    assert teacher_key((), C, config, 0) != teacher_key((), C + 1, config, 0)
