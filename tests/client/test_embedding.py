import os

import numpy as np
import pytest
import torch

from fkd_client.embedding import (
    block_inputs_cached,
    embed,
    embed_cached,
    measure_embedding_throughput,
    preprocess,
)
from fkd_common.choices import FinetuneScope
from fkd_common.errors import DataError, FkdError
from fkd_common.extractor_artifact import ExtractorSpec

SHA = "e" * 64


class CountingExtractor(torch.nn.Module):
    """Passes batches on, counting images; runs out of memory above `limit`."""

    def __init__(self, inner, limit=10**9):
        super().__init__()
        self.inner, self.limit, self.seen = inner, limit, 0
        self.spec = inner.spec

    def forward(self, x):
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("too large")
        self.seen += len(x)
        return self.inner(x)

    def stem_forward(self, x, scope):
        self.seen += len(x)
        return self.inner.stem_forward(x, scope)

    def tail_forward(self, x, scope):
        return self.inner.tail_forward(x, scope)


def test_grey_pixels_are_scaled_normalised_and_repeated():
    spec = ExtractorSpec("resnet18", 2, (0.5, 0.5, 0.0), (0.5, 0.25, 1.0), stem="small")
    x = preprocess(np.array([[[[0], [255]], [[255], [0]]]], np.uint8), spec)
    assert x.dtype == torch.float32
    np.testing.assert_allclose(x[0, 0], [[-1, 1], [1, -1]], atol=1e-6)
    np.testing.assert_allclose(x[0, 1], [[-2, 2], [2, -2]], atol=1e-6)
    np.testing.assert_allclose(x[0, 2], [[0, 1], [1, 0]], atol=1e-6)


def test_shrinking_averages_pixels_instead_of_dropping_them():
    spec = ExtractorSpec("resnet18", 1, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), stem="small")
    checkerboard = np.indices((8, 8)).sum(0).astype(np.uint8)[None, :, :, None] % 2 * 255
    assert preprocess(checkerboard, spec)[0, 0, 0, 0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.scenario(40)
def test_images_of_another_kind_are_refused():
    spec = ExtractorSpec("resnet18", 16, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    with pytest.raises(DataError, match="float64 of shape"):
        preprocess(np.zeros((1, 8, 8, 3)), spec)


@pytest.mark.scenario(40)
def test_a_shard_cut_short_between_two_batches_is_an_error_not_a_signal(extractor, tmp_path):
    """Scenario 40."""
    path = tmp_path / "images.npy"
    np.save(path, np.zeros((4, 64, 64, 1), np.uint8))
    images = np.load(path, mmap_mode="r")
    with pytest.raises(DataError, match="cut short"):
        embed(extractor, images, batch_size=2, progress=lambda *_: os.truncate(path, 128))


def test_batches_do_not_change_embeddings(extractor, pictures):
    whole = embed(extractor, pictures.images)
    assert whole.shape == (12, 512)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(embed(extractor, pictures.images, batch_size=5), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.scenario(41)
def test_running_out_of_memory_halves_the_batch(extractor, pictures):
    counting = CountingExtractor(extractor, limit=3)
    found = embed(counting, pictures.images, batch_size=8)
    np.testing.assert_allclose(found, embed(extractor, pictures.images), rtol=1e-4, atol=1e-5)


@pytest.mark.scenario(41)
def test_out_of_memory_with_a_single_image_is_reported(extractor, pictures):
    with pytest.raises(FkdError, match="one image") as refused:
        embed(CountingExtractor(extractor, limit=0), pictures.images)
    assert refused.value.reason == "OUT_OF_MEMORY"


def test_cached_embeddings_are_reused(tmp_path, extractor, pictures):
    counting = CountingExtractor(extractor)
    first = embed_cached(tmp_path, SHA, counting, pictures)
    second = embed_cached(tmp_path, SHA, counting, pictures)
    assert counting.seen == 12
    np.testing.assert_array_equal(first, second)
    embed_cached(tmp_path, "f" * 64, counting, pictures)
    assert counting.seen == 24  # another extractor, another cache entry


@pytest.mark.scenario(29)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_cache_file_is_recomputed(tmp_path, extractor, pictures, damage):
    counting = CountingExtractor(extractor)
    first = embed_cached(tmp_path, SHA, counting, pictures)
    (file,) = tmp_path.glob("*.npy")
    raw = bytearray(file.read_bytes())
    raw[-100] ^= 1
    file.write_bytes({"cut": bytes(raw[:-5]), "flipped": bytes(raw), "empty": b""}[damage])
    np.testing.assert_array_equal(embed_cached(tmp_path, SHA, counting, pictures), first)
    assert counting.seen == 24
    assert not list(tmp_path.glob(".writing-*"))  # no temporary file is left


def test_block_inputs_are_mapped_from_disk_and_lead_to_the_embeddings(tmp_path, extractor, pictures):
    counting = CountingExtractor(extractor)
    inputs = block_inputs_cached(tmp_path, SHA, counting, pictures, FinetuneScope.BLOCK)
    assert isinstance(inputs, np.memmap)
    assert inputs.shape == (12, 512, 1, 1)
    seen = counting.seen
    block_inputs_cached(tmp_path, SHA, counting, pictures, FinetuneScope.BLOCK)
    assert counting.seen == seen + 1  # the probe that tells the shape
    with torch.inference_mode():
        h = extractor.tail(FinetuneScope.BLOCK)(torch.tensor(np.array(inputs)))
    np.testing.assert_allclose(h, embed(extractor, pictures.images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scope", [FinetuneScope.BLOCK, FinetuneScope.LAYER4])
def test_one_pass_gives_embeddings_and_block_inputs_bit_by_bit(tmp_path, extractor, pictures, scope):
    counting = CountingExtractor(extractor)
    told = []
    h = embed_cached(
        tmp_path / "one", SHA, counting, pictures, scope=scope, progress=lambda part, what: told.append(part)
    )
    assert told == [1.0]
    inputs = block_inputs_cached(tmp_path / "one", SHA, counting, pictures, scope)
    assert counting.seen == 12 + 2  # and two probes that tell the shape
    assert h.tobytes() == embed(extractor, pictures.images).tobytes()
    alone = block_inputs_cached(tmp_path / "two", SHA, extractor, pictures, scope)
    assert inputs.shape == alone.shape
    assert inputs.tobytes() == alone.tobytes()
    again = embed_cached(tmp_path / "one", SHA, counting, pictures, scope=scope)
    assert counting.seen == 14
    assert again.tobytes() == h.tobytes()


def test_block_inputs_of_the_head_are_the_embeddings(tmp_path, extractor, pictures):
    inputs = block_inputs_cached(tmp_path, SHA, extractor, pictures, FinetuneScope.HEAD)
    np.testing.assert_array_equal(inputs, embed_cached(tmp_path, SHA, extractor, pictures))


def test_throughput_is_measured_side_by_side(extractor, pictures):
    found = measure_embedding_throughput(extractor, pictures.images, "cpu", repeats=1)
    assert found["ratio"] == pytest.approx(found["embed"] / found["bare"])
