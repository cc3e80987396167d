import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from fkd_client.extractor import Extractor
from fkd_client.global_model import GlobalModel, MomentCorrection, Published
from fkd_client.personal import PersonalData, personalise
from fkd_client.personal_file import Origin, load_personal, read_origin, save_personal
from fkd_client.teacher import train_teacher
from fkd_common.choices import FinetuneScope, PersonalKind, TeacherKind
from fkd_common.errors import DataError, UsageError
from fkd_common.method.metrics import accuracy
from fkd_common.method.moments import accumulate, centre, moment_targets, num_moment_features, solve
from fkd_common.method.residuals import Standardiser
from fkd_common.method.student_layout import initial_student
from fkd_common.tensors import decode, encode
from tests.client.conftest import make_blobs

C, D = 4, 16
ORIGIN = Origin("run", "site-a", ("a", "b", "c", "d"), "ab" * 32)


def published(config, moments=True):
    """A global model corrected with moments of data that all clients share."""
    pooled = make_blobs(300, [0, 1, 2, 3], seed=50)
    state = initial_student(0, D, config.hidden, C, config.norm)
    if not moments:
        return GlobalModel(state, config)
    p = num_moment_features(config.hidden, D, config.moment_features)
    correction = MomentCorrection(np.zeros((p, C)), Standardiser.of(pooled.h), config.moment_features)
    base = GlobalModel(state, config, None, correction)
    student = base.outputs(pooled.h)
    targets = moment_targets(pooled.y, None, C, config.kappa, 0.0)
    sums = accumulate(correction.vector(student.hidden, pooled.h), targets - centre(student.logits))
    V = solve(sums.A, sums.B, 10.0)
    return GlobalModel(state, config, None, replace(correction, V=V), Published.MOMENTS)


def client(config, classes=(0, 0, 0, 1), n=60, v=40):
    train, val = make_blobs(n, list(classes), seed=1), make_blobs(v, list(classes), seed=2)
    teacher = train_teacher(train.h, train.y, val.h, val.y, C, config, threads=1, seed=0)
    return PersonalData(train.h, train.y), PersonalData(val.h, val.y), teacher


@pytest.fixture
def config(config):
    return config.model_copy(
        update={"finetune_scope": FinetuneScope.HEAD, "personal_lambda_grid": (1.0, 100.0)}
    )


def test_every_candidate_is_built_and_one_is_chosen(config):
    train, val, teacher = client(config)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    assert model.candidates == ("global", "prior", "closed_form", "blend", "finetune")
    assert model.chosen in model.candidates
    for name, value in model.val_accuracy.items():
        assert accuracy(model.scores(name, val.h), val.labels) == value


@pytest.mark.parametrize("personal, kept", [
    (("closed_form", "prior", "blend", "finetune"), "blend"),
    (("closed_form", "prior"), "prior"),
    (("closed_form",), "closed_form"),
    (("finetune",), "finetune"),
    ((), "global"),
])  # fmt: skip
def test_of_equals_one_that_knows_the_label_shares_is_kept_before_the_global_model(config, personal, kept):
    """A D_val of one class, which everybody gets right, cannot tell them apart."""
    config = config.model_copy(update={"personal": tuple(PersonalKind(name) for name in personal)})
    train, val, teacher = client(config, classes=[2])
    model = personalise(published(config), train, val, teacher, config, seed=0)
    assert model.val_accuracy == dict.fromkeys(model.candidates, 1.0)
    assert model.chosen == kept


def test_the_global_model_is_kept_where_every_other_is_worse(config):
    """A site of one class, whose D_val has another: its label shares mislead."""
    wild = config.model_copy(update={"personal": (PersonalKind.PRIOR,)})
    (train, _, teacher), (_, val, _) = client(wild, classes=[2]), client(wild, classes=[1])
    model = personalise(published(wild), train, val, teacher, wild, seed=0)
    assert model.val_accuracy["prior"] < model.val_accuracy["global"]
    assert model.chosen == "global"


def test_the_global_model_is_left_alone(config):
    train, val, teacher = client(config)
    base = published(config)
    before = base.sha256()
    personalise(base, train, val, teacher, config, seed=0)
    assert base.sha256() == before


def test_epoch_zero_is_a_candidate_of_fine_tuning(config):
    wild = config.model_copy(update={"finetune_lr_head": 1e4, "personal": (PersonalKind.FINETUNE,)})
    train, val, teacher = client(wild, classes=[0, 1, 2, 3])
    model = personalise(published(wild), train, val, teacher, wild, seed=0)
    assert model.finetuned.epoch == 0
    assert model.val_accuracy["finetune"] == model.val_accuracy["global"]
    for name, array in model.base.state.items():
        np.testing.assert_array_equal(model.finetuned.head[name], array)


def test_fine_tuning_learns_with_the_correction_frozen(config):
    config = config.model_copy(update={"finetune_lr_head": 3e-2, "finetune_epochs": 5})
    train, val, teacher = client(config, classes=[0, 1, 2, 3], n=200)
    base = published(config, moments=False)  # an untrained student scores 0 for all
    model = personalise(base, train, val, teacher, config, seed=0)
    assert model.finetuned.epoch > 0
    assert model.val_accuracy["finetune"] > model.val_accuracy["global"] + 0.3
    assert "closed_form" not in model.candidates  # there is no moment correction to pull towards


def test_batch_statistics_do_not_move_in_fine_tuning(config):
    train, val, teacher = client(config, classes=[0, 1, 2, 3])
    model = personalise(published(config, moments=False), train, val, teacher, config, seed=0)
    assert model.finetuned.epoch > 0
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        key = f"layers.0.norm.{name}"
        np.testing.assert_array_equal(model.finetuned.head[key], model.base.state[key])


def test_a_large_closed_form_strength_gives_the_global_correction(config):
    config = config.model_copy(update={"personal_lambda_grid": (1e12,)})
    train, val, teacher = client(config)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    np.testing.assert_allclose(model.V, model.base.moments.V, atol=1e-6)
    assert model.personal_lambda == 1e12


@pytest.mark.scenario(38)
def test_without_validation_samples_the_global_model_is_kept(config):
    train, val, teacher = client(config, v=0)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    assert model.chosen == "global"
    assert "finetune" not in model.candidates


def fingerprint(model, h):
    return [model.chosen, *(model.scores(name, h).tobytes() for name in model.candidates)]


@pytest.mark.parametrize("hidden", [(16, 8), (320, 160)], ids=["small", "large enough for threaded BLAS"])
def test_personalising_twice_or_in_threads_gives_equal_bits(config, hidden):
    config = config.model_copy(update={"hidden": hidden, "finetune_epochs": 1})
    train, val, teacher = client(config)
    before = torch.get_rng_state()

    def run(_=None):
        return fingerprint(personalise(published(config), train, val, teacher, config, seed=0), val.h)

    alone = run()
    with ThreadPoolExecutor(2) as pool:
        assert all(found == alone for found in pool.map(run, range(3)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("scope", [FinetuneScope.BLOCK, FinetuneScope.LAYER4])
def test_the_end_of_the_extractor_is_fine_tuned_from_cached_block_inputs(config, extractor: Extractor, scope):
    config = config.model_copy(
        update={"finetune_scope": scope, "personal": (PersonalKind.FINETUNE,), "finetune_epochs": 1}
    )
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(12, 3, 16, 16)), dtype=torch.float32)
    with torch.inference_mode():
        h, inputs = extractor(x).numpy(), extractor.stem_forward(x, scope).numpy()
    y = np.resize([0, 1], 12).astype(np.int64)
    base = GlobalModel(initial_student(0, 512, config.hidden, C, config.norm), config)
    data = PersonalData(h, y, inputs)
    teacher = train_teacher(h, y, h, y, C, config, threads=1, seed=0)
    weights = extractor.trunk.layer4[1].conv1.weight.clone()
    model = personalise(base, data, data, teacher, config, tail=extractor.tail(scope), seed=0)
    assert torch.equal(extractor.trunk.layer4[1].conv1.weight, weights)
    assert accuracy(model.scores("finetune", h, inputs), y) == model.val_accuracy["finetune"]
    with pytest.raises(UsageError, match="needs the activations"):
        model.scores("finetune", h)
    with pytest.raises(UsageError, match="needs the extractor's tail"):
        personalise(base, data, data, teacher, config, seed=0)


def test_a_saved_personal_model_scores_the_same_bits(config, tmp_path):
    train, val, teacher = client(config)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    save_personal(model, tmp_path / "personal", ORIGIN)
    loaded = load_personal(tmp_path / "personal")
    assert fingerprint(loaded, val.h) == fingerprint(model, val.h)
    assert loaded.val_accuracy == model.val_accuracy
    assert loaded.base.sha256() == model.base.sha256()
    assert read_origin(tmp_path / "personal") == ORIGIN


@pytest.mark.parametrize("classes", [(0, 0, 0, 1), (0, 1, 2), (2,)])
def test_an_mlp_teacher_is_kept_among_the_tensors(config, tmp_path, classes):
    config = config.model_copy(update={"teacher": TeacherKind.MLP, "teacher_epochs": 3})
    train, val, teacher = client(config, classes=classes)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    save_personal(model, tmp_path, ORIGIN)
    assert not (tmp_path / "teacher.txt").exists()
    loaded = load_personal(tmp_path)
    assert fingerprint(loaded, val.h) == fingerprint(model, val.h)
    assert loaded.scores("blend", val.h).tobytes() == model.scores("blend", val.h).tobytes()


@pytest.mark.parametrize("damage", [lambda a: a[:-1], lambda a: a * np.nan, lambda a: a.astype(np.float32)])
def test_an_mlp_teacher_that_is_damaged_is_refused(config, tmp_path, damage):
    config = config.model_copy(update={"teacher": TeacherKind.MLP, "teacher_epochs": 3})
    train, val, teacher = client(config)
    save_personal(personalise(published(config), train, val, teacher, config, seed=0), tmp_path, ORIGIN)
    tensors = decode((tmp_path / "model.safetensors").read_bytes())
    tensors["teacher.layers.1.weight"] = damage(tensors["teacher.layers.1.weight"])
    (tmp_path / "model.safetensors").write_bytes(encode(tensors))
    described = json.loads((tmp_path / "model.json").read_text())
    del described["tensors_sha256"]
    (tmp_path / "model.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match="not a readable personal model: the teacher cannot be read"):
        load_personal(tmp_path)


def test_trees_are_kept_as_earlier_releases_kept_them(config, tmp_path):
    train, val, teacher = client(config)
    save_personal(personalise(published(config), train, val, teacher, config, seed=0), tmp_path, ORIGIN)
    kept = decode((tmp_path / "model.safetensors").read_bytes())
    own = {
        name.removeprefix("teacher."): array for name, array in kept.items() if name.startswith("teacher.")
    }
    assert own.keys() == {"present", "slopes", "offsets", "identity"}
    assert own["identity"].dtype == np.uint8
    assert json.loads((tmp_path / "model.json").read_text())["teacher"] == {
        "num_classes": C,
        "n_val": 40,
        "temperature": 1.0,
        "threads": 1,
        "has_trees": True,
    }
    assert (tmp_path / "teacher.txt").read_text() == teacher.model.learner.booster.model_to_string()


def test_a_damaged_personal_model_is_refused(config, tmp_path):
    train, val, teacher = client(config, v=0)
    folder = tmp_path / "personal"
    save_personal(personalise(published(config), train, val, teacher, config, seed=0), folder, ORIGIN)
    load_personal(folder)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(DataError, match="not a readable personal model"):
        load_personal(folder)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.5])
def test_a_teacher_cut_short_is_refused_and_does_not_end_the_program(config, tmp_path, left):
    train, val, teacher = client(config)
    save_personal(personalise(published(config), train, val, teacher, config, seed=0), tmp_path, ORIGIN)
    load_personal(tmp_path)
    trees = (tmp_path / "teacher.txt").read_text()
    (tmp_path / "teacher.txt").write_text(trees[: int(left * len(trees))])
    with pytest.raises(DataError, match="not a readable personal model"):
        load_personal(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"val_accuracy": []}', "[]", "nonsense"])
def test_a_description_that_is_none_is_refused(config, tmp_path, text):
    train, val, teacher = client(config, v=0)
    save_personal(personalise(published(config), train, val, teacher, config, seed=0), tmp_path, ORIGIN)
    described = json.loads((tmp_path / "model.json").read_text())
    with_it = json.dumps(described | json.loads(text)) if text.startswith("{") else text
    (tmp_path / "model.json").write_text(with_it)
    with pytest.raises(DataError, match="not a readable personal model"):
        load_personal(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", '{"origin": 3}', "nonsense"])
def test_a_model_that_does_not_say_where_it_comes_from_is_refused(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(DataError, match="does not say which classes and extractor"):
        read_origin(tmp_path)


def test_an_unknown_candidate_is_refused(config):
    train, val, teacher = client(config)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    with pytest.raises(UsageError, match="has no candidate 'best'"):
        model.scores("best", val.h)


def other_than(model):
    """The same model with other tensors and another choice."""
    return replace(model, chosen="prior", log_prior=model.log_prior + 1.0)


@pytest.mark.parametrize("place", ["file.written", "file.synced", "file.renamed", "file.durable"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_who_reads_while_a_model_is_replaced_gets_one_of_the_two_whole(
    place, nth, config, tmp_path, monkeypatch
):
    """The writer stops in the middle, for good; the next one puts things in order."""
    train, val, teacher = client(config)
    older = personalise(published(config), train, val, teacher, config, seed=0)
    newer = other_than(older)
    save_personal(older, tmp_path, ORIGIN)
    passed = []

    def stop(name):
        passed.append(name)
        if passed.count(place) == nth:
            raise KeyboardInterrupt

    monkeypatch.setattr("fkd_common.artifacts.failpoint", stop)
    with pytest.raises(KeyboardInterrupt):
        save_personal(newer, tmp_path, ORIGIN)
    monkeypatch.undo()
    found = load_personal(tmp_path)
    expected = newer if found.chosen == "prior" else older
    assert fingerprint(found, val.h) == fingerprint(expected, val.h)
    for model in (older, newer):
        save_personal(model, tmp_path, ORIGIN)
        assert fingerprint(load_personal(tmp_path), val.h) == fingerprint(model, val.h)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.json",
        "model.safetensors",
        "teacher.txt",
    ]


def test_a_reader_beside_a_writer_never_sees_a_mixture(config, tmp_path):
    train, val, teacher = client(config)
    older = personalise(published(config), train, val, teacher, config, seed=0)
    models = (older, other_than(older))
    expected = {model.chosen: fingerprint(model, val.h) for model in models}
    save_personal(older, tmp_path, ORIGIN)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            for model in reversed(models):
                save_personal(model, tmp_path, ORIGIN)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        deadline = time.monotonic() + 20
        while len(seen) < 2 or time.monotonic() < deadline - 18:
            assert time.monotonic() < deadline
            found = load_personal(tmp_path)
            assert fingerprint(found, val.h) == expected[found.chosen]
            seen.add(found.chosen)
    finally:
        stop.set()
        writer.join()


def test_tensors_of_another_description_are_refused(config, tmp_path):
    train, val, teacher = client(config)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    save_personal(other_than(model), tmp_path, ORIGIN)
    tensors = (tmp_path / "model.safetensors").read_bytes()
    save_personal(model, tmp_path, ORIGIN)
    (tmp_path / "model.safetensors").write_bytes(tensors)
    with pytest.raises(DataError, match=r"is not the one that model\.json names"):
        load_personal(tmp_path)


def test_models_of_earlier_releases_name_no_tensors_and_are_read(config, tmp_path):
    train, val, teacher = client(config)
    model = personalise(published(config), train, val, teacher, config, seed=0)
    save_personal(model, tmp_path, ORIGIN)
    described = json.loads((tmp_path / "model.json").read_text())
    del described["tensors_sha256"]
    (tmp_path / "model.json").write_text(json.dumps(described))
    assert fingerprint(load_personal(tmp_path), val.h) == fingerprint(model, val.h)
