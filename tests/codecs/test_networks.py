"""Whatever a method declares to be a network: filters, counters, and what codecs leave alone."""

import numpy as np
import pytest

from fkd_common.choices import ModelCodec, UpdateCodec
from fkd_common.codecs.networks import NetworkCodecs
from fkd_common.codecs.student import rounding
from fkd_common.errors import InvalidUploadError
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import check_schema, decode, encode, max_blob_bytes

NETWORK = {
    "conv.weight": TensorSpec((6, 3, 5, 5), "float32"),
    "fc.weight": TensorSpec((4, 100), "float32"),
    "bias": TensorSpec((4,), "float32"),
    "seen": TensorSpec((), "int64"),
    "table": TensorSpec((3,), "int32"),
    "fine": TensorSpec((2, 2), "float64"),
    "none": TensorSpec((0, 7), "float32"),
}
UPLOAD = {**NETWORK, "counts": TensorSpec((5,), "int64")}
UPDATES = [codec for codec in UpdateCodec if codec is not UpdateCodec.FP32]


def tensors(layout, seed):
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(rng.normal(0, 3, spec.shape)).astype(spec.dtype) for name, spec in layout.items()
    }


def codecs(update=UpdateCodec.FP32, model=ModelCodec.FP32, networks=None):
    return NetworkCodecs({"net": NETWORK} if networks is None else networks, "net", update, model)


def off(found, wanted, name):
    return np.linalg.norm(found[name] - wanted[name]) / np.linalg.norm(wanted[name])


@pytest.mark.parametrize("model", [ModelCodec.FP16, ModelCodec.INT8])
def test_a_group_comes_back_nearly_and_what_is_no_float32_exactly(model):
    group = tensors(NETWORK, 0)
    blob = encode(codecs(model=model).pack_group("net", group))
    assert len(blob) <= max_blob_bytes(NETWORK)
    back = codecs(model=model).unpack_group("net", decode(blob))
    check_schema(back, NETWORK)
    assert off(back, group, "conv.weight") < 0.01
    for name in ("seen", "table", "fine", "none"):
        np.testing.assert_array_equal(back[name], group[name])


@pytest.mark.parametrize("update", UPDATES)
def test_an_upload_comes_back_nearly_with_what_is_beside_the_network(update):
    start, upload = tensors(NETWORK, 0), tensors(UPLOAD, 1)
    blob = encode(codecs(update).pack_upload(upload, start, UPLOAD, rounding([0], 1, 1)))
    assert len(blob) <= max_blob_bytes(UPLOAD)
    back = codecs(update).unpack_upload(decode(blob), start, UPLOAD)
    check_schema(back, UPLOAD)
    assert off(back, upload, "fc.weight") < (1.2 if update is UpdateCodec.INT1 else 0.2)
    for name in ("counts", "seen", "fine"):
        np.testing.assert_array_equal(back[name], upload[name])


@pytest.mark.parametrize("update", UPDATES)
def test_a_network_may_be_matrices_alone(update):
    network = {"fc.weight": NETWORK["fc.weight"]}
    start, moved = tensors(network, 0), tensors(network, 1)
    made = codecs(update, ModelCodec.INT8, {"net": network})
    check_schema(made.unpack_group("net", decode(encode(made.pack_group("net", start)))), network)
    blob = encode(made.pack_upload(moved, start, network, rounding([0], 1, 1)))
    back = made.unpack_upload(decode(blob), start, network)
    assert off(back, moved, "fc.weight") < (1.2 if update is UpdateCodec.INT1 else 0.2)


def test_a_row_is_a_filter():
    """One large filter leaves the others their digits."""
    group = tensors(NETWORK, 0)
    group["conv.weight"][0] *= 1e4
    back = codecs(model=ModelCodec.INT8).unpack_group(
        "net", dict(codecs(model=ModelCodec.INT8).pack_group("net", group))
    )
    assert np.abs(back["conv.weight"][1:] - group["conv.weight"][1:]).max() < 0.1


@pytest.mark.parametrize("networks", [{}, {"net": {"bias": NETWORK["bias"]}}, {"other": NETWORK}])
def test_without_a_matrix_of_the_trained_group_an_upload_is_as_it_was(networks):
    upload = tensors(UPLOAD, 1)
    made = codecs(UpdateCodec.INT4, networks=networks)
    assert made.pack_upload(upload, {}, UPLOAD, rounding([0], 1, 1)) is upload
    assert made.unpack_upload(upload, {}, UPLOAD) is upload


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.pop("matrices"),
        lambda parts: parts.update(counters=np.zeros(2, np.int64)),
        lambda parts: parts.update({"beside/bias": np.zeros(4, np.float32)}),
        lambda parts: parts.update({"fc.weight": np.zeros((4, 100), np.float32)}),
        lambda parts: parts.pop("beside/counts"),
        lambda parts: parts.update({"beside/counts": np.zeros(6, np.int64)}),
        lambda parts: parts.update({"beside/fine": np.full((2, 2), np.nan)}),
    ],
)
def test_anything_else_than_what_is_packed_is_refused(change):
    start, made = tensors(NETWORK, 0), codecs(UpdateCodec.INT8)
    parts = dict(made.pack_upload(tensors(UPLOAD, 1), start, UPLOAD, rounding([0], 1, 1)))
    change(parts)
    with pytest.raises(InvalidUploadError):
        check_schema(made.unpack_upload(parts, start, UPLOAD), UPLOAD)
