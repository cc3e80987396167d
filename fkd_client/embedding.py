"""Images to embeddings, once per shard: preprocessing, batched forward pass, on-disk cache; no learning.

Preprocessing always runs on the CPU, so that every device sees the same input bits.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fkd_client.array_cache import read_array, sole_writer, write_array
from fkd_client.extractor import EMBEDDING_DIM, Extractor, ExtractorSpec
from fkd_client.progress import Progress, silent
from fkd_common.choices import FinetuneScope
from fkd_common.errors import DataError, FkdError
from fkd_shards.arrays import check_still_whole

PREPROCESSING_VERSION = 1
"""Raised whenever :func:`preprocess` computes something else: cached embeddings then no longer match."""

BATCH_SIZE = 256
BATCH_BYTES = 4 << 30
"""Of memory for one batch, about: large images are embedded fewer at a time."""


class ImageShard(Protocol):
    """What embedding needs of a shard."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """(n, H, W, 1 or 3) pixels."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of the shard's content."""
        ...


def preprocess(images: NDArray[np.uint8], spec: ExtractorSpec) -> Tensor:
    """Prepare images for an extractor: resize (bilinear, antialiased, from uint8), scale, normalise.

    Args:
        images: (n, H, W, 1 or 3) uint8; grey is repeated over the three channels.
        spec: size, mean and std to prepare for.

    Returns:
        (n, 3, s, s) float32 tensor in channels_last memory order, on the CPU.

    Raises:
        DataError: another shape or dtype.
    """
    if images.ndim != 4 or images.shape[3] not in (1, 3) or images.dtype != np.uint8:
        raise DataError(
            f"images are uint8 of shape (n, height, width, 1 or 3); got {images.dtype} of shape {images.shape}"
        )
    # A copy, because torch cannot wrap the read-only pages of a memory-mapped shard.
    pixels = torch.from_numpy(np.array(images, order="C")).permute(0, 3, 1, 2)
    size = (spec.input_size, spec.input_size)
    if tuple(pixels.shape[2:]) != size and len(pixels):
        pixels = functional.interpolate(
            pixels, size=size, mode="bilinear", antialias=True, align_corners=False
        )
    mean = torch.tensor(spec.mean).view(1, 3, 1, 1)
    std = torch.tensor(spec.std).view(1, 3, 1, 1)
    scaled = pixels.expand(-1, 3, -1, -1).to(torch.float32, memory_format=torch.channels_last)
    return scaled.mul_(1.0 / (255.0 * std)).sub_(mean / std)


def embed(
    extractor: Extractor,
    images: NDArray[np.uint8],
    *,
    device: torch.device | str = "cpu",
    batch_size: int = BATCH_SIZE,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """Embeddings h = f_θ(x) of a shard's images.

    Args:
        extractor: the frozen extractor, already on `device`.
        images: (n, H, W, 1 or 3) uint8.
        device: where the forward pass runs.
        batch_size: images per forward pass; fewer if they take more than :data:`BATCH_BYTES`, and halved (down to 1)
            whenever the device runs out of memory.
        progress: told after every batch.

    Returns:
        (n, 512) float32.

    Raises:
        DataError: the images' file was cut short meanwhile.
        FkdError: not even one image fits into the device's memory.
    """
    out = np.empty((len(images), EMBEDDING_DIM), np.float32)

    def forward(x: Tensor) -> tuple[Tensor]:
        return (extractor(x),)

    for first, (part,) in _forward_batches(forward, extractor.spec, images, device, batch_size):
        out[first : first + len(part)] = part
        progress((first + len(part)) / len(images), "embedding images")
    return out


def embedding_file(cache_dir: Path, extractor_sha256: str, shard_sha256: str) -> Path:
    """Where :func:`embed_cached` keeps the embeddings of a shard."""
    return cache_dir / f"{_cache_key(extractor_sha256, shard_sha256)}.npy"


def embed_cached(
    cache_dir: str | Path,
    extractor_sha256: str,
    extractor: Extractor,
    shard: ImageShard,
    *,
    scope: FinetuneScope = FinetuneScope.HEAD,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """Embeddings of a shard, computed once per (extractor, shard, preprocessing) and kept on disk.

    Args:
        cache_dir: folder of cached arrays, made if absent; a damaged file in it is recomputed.
        extractor_sha256: hash of the extractor artifact.
        extractor: the network of that artifact.
        shard: images and their content hash.
        scope: what personalisation will unfreeze: what enters that part is kept on the way, so that the trunk does
            not run a second time for :func:`block_inputs_cached`.
        device: where the forward pass runs.
        progress: told after every batch.

    Returns:
        (n, 512) float32.
    """
    path = embedding_file(Path(cache_dir), extractor_sha256, shard.sha256)
    with sole_writer(path, lambda: progress(0.0, "waiting for another process to embed the same images")):
        cached = read_array(path)
        if cached is None or cached.shape != (len(shard.images), EMBEDDING_DIM):
            if scope is FinetuneScope.HEAD:
                result = embed(extractor, shard.images, device=device, progress=progress)
            else:
                blocks = _block_inputs_file(Path(cache_dir), extractor_sha256, shard.sha256, scope)
                result = _embed_keeping_block_inputs(blocks, extractor, shard, scope, device, progress)
            write_array(path, result.shape, iter([result]))
            return result
        return np.array(cached)


def block_inputs_cached(
    cache_dir: str | Path,
    extractor_sha256: str,
    extractor: Extractor,
    shard: ImageShard,
    scope: FinetuneScope,
    *,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """Activations entering the part of the extractor that personalisation unfreezes, kept on disk.

    Args:
        cache_dir: folder of cached arrays, made if absent; a damaged file in it is recomputed.
        extractor_sha256: hash of the extractor artifact.
        extractor: the network of that artifact.
        shard: images and their content hash.
        scope: what is unfrozen; ``head`` unfreezes nothing of the extractor and gives the embeddings.
        device: where the forward pass runs.
        progress: told after every batch.

    Returns:
        (n, c, a, a) float32, memory-mapped read-only; (n, 512) for ``head``.
    """
    if scope is FinetuneScope.HEAD:
        return embed_cached(cache_dir, extractor_sha256, extractor, shard, device=device, progress=progress)
    shape = _block_inputs_shape(extractor, shard, scope, device)
    path = _block_inputs_file(Path(cache_dir), extractor_sha256, shard.sha256, scope)

    def forward(x: Tensor) -> tuple[Tensor]:
        return (extractor.stem_forward(x, scope),)

    def parts() -> Iterator[NDArray[np.float32]]:
        batches = _forward_batches(forward, extractor.spec, shard.images, device, BATCH_SIZE)
        for first, (part,) in batches:
            yield part
            progress((first + len(part)) / shape[0], "caching activations for personalisation")

    with sole_writer(path, lambda: progress(0.0, "waiting for another process to fill the same cache")):
        cached = read_array(path)
        if cached is not None and cached.shape == shape:
            return cached
        write_array(path, shape, parts())
        written = read_array(path)
        if written is None:
            raise DataError(f"{path} was damaged as soon as it was written: check the disk under {cache_dir}")
        return written


def _block_inputs_file(
    cache_dir: Path, extractor_sha256: str, shard_sha256: str, scope: FinetuneScope
) -> Path:
    return cache_dir / f"{_cache_key(extractor_sha256, shard_sha256, scope.value)}.npy"


def _block_inputs_shape(
    extractor: Extractor, shard: ImageShard, scope: FinetuneScope, device: torch.device | str
) -> tuple[int, ...]:
    size = extractor.spec.input_size
    with torch.inference_mode():
        probe = extractor.stem_forward(torch.zeros(1, 3, size, size, device=device), scope)
    return (len(shard.images), *probe.shape[1:])


def _embed_keeping_block_inputs(
    path: Path,
    extractor: Extractor,
    shard: ImageShard,
    scope: FinetuneScope,
    device: torch.device | str,
    progress: Progress,
) -> NDArray[np.float32]:
    """The embeddings of a shard, and the file of :func:`block_inputs_cached`, in one pass; the same bits as in two."""
    out = np.empty((len(shard.images), EMBEDDING_DIM), np.float32)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        inputs = extractor.stem_forward(x, scope)
        return inputs, extractor.tail_forward(inputs, scope)

    def parts() -> Iterator[NDArray[np.float32]]:
        batches = _forward_batches(forward, extractor.spec, shard.images, device, BATCH_SIZE)
        for first, (inputs, embeddings) in batches:
            out[first : first + len(embeddings)] = embeddings
            yield inputs
            progress((first + len(embeddings)) / len(out), "embedding images")

    with sole_writer(path, lambda: progress(0.0, "waiting for another process to fill the same cache")):
        write_array(path, _block_inputs_shape(extractor, shard, scope, device), parts())
    return out


def measure_embedding_throughput(
    extractor: Extractor,
    images: NDArray[np.uint8],
    device: torch.device | str = "cpu",
    *,
    batch_size: int = BATCH_SIZE,
    repeats: int = 3,
) -> dict[str, float]:
    """Compare :func:`embed` with a bare forward loop over prepared batches, best of `repeats` alternating runs.

    Returns:
        ``embed`` and ``bare`` in images per second, and their ``ratio``.
    """
    batches = [
        preprocess(images[i : i + batch_size], extractor.spec).to(device)
        for i in range(0, len(images), batch_size)
    ]

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                extractor(batch).cpu()

    def whole() -> None:
        embed(extractor, images, device=device, batch_size=batch_size)

    seconds = {"bare": float("inf"), "embed": float("inf")}
    bare()  # the first pass pays for the library's kernel caches
    for _ in range(repeats):
        for name, run in (("bare", bare), ("embed", whole)):
            start = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    rates = {name: len(images) / value for name, value in seconds.items()}
    return {**rates, "ratio": rates["embed"] / rates["bare"]}


def _forward_batches(
    forward: Callable[[Tensor], tuple[Tensor, ...]],
    spec: ExtractorSpec,
    images: NDArray[np.uint8],
    device: torch.device | str,
    batch_size: int,
) -> Iterator[tuple[int, tuple[NDArray[np.float32], ...]]]:
    """Yield (first index, outputs) part by part."""
    batch_size = min(batch_size, spec.images_within(BATCH_BYTES))
    chunk = batch_size
    first = 0
    for batch in _prepared_batches(spec, images, device, batch_size):
        done = 0
        while done < len(batch):
            try:
                with torch.inference_mode():
                    found = forward(batch[done : done + chunk].to(device, non_blocking=True))
                    outputs = tuple(tensor.float().cpu().contiguous().numpy() for tensor in found)
            except torch.OutOfMemoryError as error:
                if chunk == 1:
                    raise FkdError(
                        f"the memory of {device} does not hold one image's activations: free it, or use --device cpu",
                        reason="OUT_OF_MEMORY",
                    ) from error
                chunk //= 2
                torch.cuda.empty_cache()
                continue
            yield first + done, outputs
            done += len(outputs[0])
        first += len(batch)


def _prepared_batches(
    spec: ExtractorSpec, images: NDArray[np.uint8], device: torch.device | str, batch_size: int
) -> Iterator[Tensor]:
    """Preprocessed batches; beside an accelerator, the next one is prepared while it computes.

    On the CPU preprocessing is 2 % of the work and a second thread only takes cores from the first.
    """

    pinned = torch.device(device).type == "cuda"

    def prepared(first: int) -> Tensor:
        check_still_whole(images)
        batch = preprocess(images[first : first + batch_size], spec)
        return batch.pin_memory() if pinned else batch

    firsts = range(0, len(images), batch_size)
    if torch.device(device).type == "cpu" or len(firsts) < 2:
        yield from map(prepared, firsts)
        return
    with ThreadPoolExecutor(1) as background:
        upcoming = background.submit(prepared, firsts[0])
        for following in firsts[1:]:
            ready, upcoming = upcoming, background.submit(prepared, following)
            yield ready.result()
        yield upcoming.result()


def _cache_key(*parts: str) -> str:
    return hashlib.sha256("\n".join([f"preprocessing {PREPROCESSING_VERSION}", *parts]).encode()).hexdigest()
