"""Students there and back: what a codec may lose, what it may not, and what is refused."""

import numpy as np
import pytest

from fkd_common.choices import ModelCodec, Norm, UpdateCodec
from fkd_common.codecs.student import pack_model, pack_update, unpack_model, unpack_update
from fkd_common.errors import InvalidUploadError
from fkd_common.method.student_layout import initial_student, student_layout
from fkd_common.tensors import decode, encode, max_blob_bytes

D, HIDDEN, C = 32, (48, 16), 3
LAYOUT = student_layout(D, HIDDEN, C, Norm.BATCH)
START = initial_student(0, D, HIDDEN, C, Norm.BATCH)
LOSSY = [codec for codec in UpdateCodec if codec is not UpdateCodec.FP32]


def trained():
    rng = np.random.default_rng(1)
    moved = {
        name: array + rng.laplace(size=array.shape).astype(np.float32) * np.float32(0.004)
        if array.dtype == np.float32
        else array + 40
        for name, array in START.items()
    }
    return {name: np.abs(array) if name.endswith("running_var") else array for name, array in moved.items()}


def there_and_back(codec):
    packed = pack_update(trained(), START, codec, np.random.default_rng(2))
    blob = encode(packed)
    assert len(blob) <= max_blob_bytes(LAYOUT)
    return blob, unpack_update(decode(blob), START, LAYOUT, codec)


def relative_error(back):
    names = [name for name, spec in LAYOUT.items() if len(spec.shape) == 2]
    off = sum(float(np.sum((back[name] - trained()[name]) ** 2)) for name in names)
    return off / sum(float(np.sum((trained()[name] - START[name]) ** 2)) for name in names)


@pytest.mark.parametrize("codec", UpdateCodec)
def test_names_shapes_and_dtypes_come_back(codec):
    _, back = there_and_back(codec)
    assert {name: (array.shape, str(array.dtype)) for name, array in back.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in LAYOUT.items()
    }


@pytest.mark.parametrize(
    ("codec", "most"),
    [("fp32", 0.0), ("fp16", 1e-6), ("int8", 1e-3), ("int4", 0.02), ("int1", 0.7)],
)
def test_matrices_lose_what_the_codec_says(codec, most):
    assert relative_error(there_and_back(UpdateCodec(codec))[1]) <= most


def test_every_codec_takes_less_room_than_the_one_before():
    sizes = [len(there_and_back(codec)[0]) for codec in UpdateCodec]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 10 * sizes[-1] - 4096  # headers weigh more in so small a student


@pytest.mark.parametrize("codec", LOSSY)
def test_step_counters_are_exact_and_variances_stay_positive(codec):
    _, back = there_and_back(codec)
    for name, array in trained().items():
        if name.endswith("num_batches_tracked"):
            assert back[name] == array
        if name.endswith("running_var"):
            assert (back[name] >= 0).all()
        if len(array.shape) == 1:
            np.testing.assert_allclose(back[name], array, atol=1e-3)


@pytest.mark.scenario(12)
@pytest.mark.parametrize("codec", [codec for codec in ModelCodec if codec is not ModelCodec.FP32])
def test_one_large_variance_leaves_the_others_what_they_are(codec):
    """A liar's 1e8 in one place, averaged, must not become everybody's 0 in all the others."""
    student = trained()
    student["layers.0.norm.running_var"][0] = 1e8
    back = unpack_model(decode(encode(pack_model(student, codec))), LAYOUT, codec)
    for name in ("layers.0.norm.running_var", "layers.0.norm.weight", "layers.1.norm.running_mean"):
        np.testing.assert_allclose(back[name], student[name], rtol=1e-3)


@pytest.mark.parametrize("codec", LOSSY)
def test_a_student_that_did_not_move_comes_back_as_it_was(codec):
    packed = pack_update(START, START, codec, np.random.default_rng(0))
    back = unpack_update(packed, START, LAYOUT, codec)
    np.testing.assert_array_equal(back["layers.0.linear.weight"], START["layers.0.linear.weight"])


def test_the_errors_of_many_int8_clients_cancel():
    """Unbiased rounding: the mean of 50 is far closer than one."""
    one, many = (
        [
            unpack_update(
                pack_update(trained(), START, UpdateCodec.INT8, np.random.default_rng(seed)),
                START,
                LAYOUT,
                UpdateCodec.INT8,
            )["layers.0.linear.weight"]
            for seed in seeds
        ]
        for seeds in ([0], range(50))
    )
    target = trained()["layers.0.linear.weight"]
    off = [float(np.square(np.mean(backs, axis=0) - target).sum()) for backs in (one, many)]
    assert off[1] < off[0] / 25


@pytest.mark.parametrize(("codec", "most"), [("fp32", 0.0), ("fp16", 1e-3), ("int8", 2e-3)])
def test_an_average_comes_back_nearly_and_the_same_everywhere(codec, most):
    codec = ModelCodec(codec)
    blob = encode(pack_model(trained(), codec))
    back = unpack_model(decode(blob), LAYOUT, codec)
    again = unpack_model(decode(blob), LAYOUT, codec)
    for name, array in trained().items():
        np.testing.assert_allclose(back[name], array, atol=most)
        np.testing.assert_array_equal(back[name], again[name])


@pytest.mark.scenario(10, 11)
@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize(
    "change",
    [
        lambda packed: packed.pop("vectors"),
        lambda packed: packed.update(more=np.zeros(1, np.float32)),
        lambda packed: packed.update(scales=packed["scales"].astype(np.float64)),
        lambda packed: packed.update(matrices=packed["matrices"][:-1]),
        lambda packed: packed.update(counters=packed["counters"][:-1]),
    ],
)
def test_what_was_packed_otherwise_is_refused(codec, change):
    packed = dict(pack_update(trained(), START, codec, np.random.default_rng(2)))
    change(packed)
    with pytest.raises(InvalidUploadError):
        unpack_update(packed, START, LAYOUT, codec)


@pytest.mark.scenario(10)
@pytest.mark.parametrize("codec", LOSSY)
def test_a_scale_that_is_no_number_leaves_a_student_that_is_refused(codec):
    packed = dict(pack_update(trained(), START, codec, np.random.default_rng(2)))
    packed["scales"] = np.full_like(packed["scales"], np.nan)
    back = unpack_update(packed, START, LAYOUT, codec)
    assert not np.isfinite(back["layers.0.linear.weight"]).all()
