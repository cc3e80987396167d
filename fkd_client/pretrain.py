"""Trains an extractor on a labelled *public* set, for sites with neither ImageNet weights nor internet.

The shared extractor must not know any client's images; only images everybody may see belong here.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fkd_client.embedding import preprocess
from fkd_client.extractor import EMBEDDING_DIM, Extractor, ExtractorSpec, dump_extractor
from fkd_client.progress import Progress, silent
from fkd_common.errors import DataError

_BATCH = 32
_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 5e-2
_LABEL_SMOOTHING = 0.1
_SHIFT_SHARE = 8
"""Images are shifted by up to 1/8 of their side; no flips, which would turn digits into other signs."""
SMALL_SIDE = 16
"""Up to this side the trunk gets the small stem; larger pictures get the ImageNet one, which quarters them."""


def pretrain_extractor(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    input_size: int | None = None,
    epochs: int = 12,
    seed: int,
    progress: Progress = silent,
) -> bytes:
    """Train a ResNet18 trunk with a linear head on public images; AdamW, one-cycle cosine, shifts.

    Args:
        images: (n, H, W, 1 or 3) uint8, n ≥ 2.
        labels: (n,) classes 0 … C−1.
        input_size: side the images are resized to; None: the larger of theirs, within 16 … 64 px.
        epochs: passes over the images.
        seed: seed of initial weights, shuffling and shifts.
        progress: told after every epoch.

    Returns:
        The extractor artifact; equal inputs, thread counts and seeds give equal bytes.

    Raises:
        DataError: fewer than 2 images, images and labels that differ in number, or a loss that is not finite.
    """
    if len(images) < 2 or len(images) != len(labels):
        raise DataError(
            f"pretraining needs at least 2 labelled images; got {len(images)} with {len(labels)} labels"
        )
    side = input_size or min(64, max(16, *images.shape[1:3]))
    spec = _spec(images, side)
    x, y = preprocess(images, spec), torch.tensor(np.asarray(labels), dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    trunk = initial_trunk(spec, generator)
    head = nn.Linear(EMBEDDING_DIM, int(y.max()) + 1, device="meta").to_empty(device="cpu")
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(
        [*trunk.parameters(), *head.parameters()], lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True
    )
    batches = -(-len(y) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=epochs * batches, pct_start=0.2, cycle_momentum=False
    )
    for epoch in range(epochs):
        order = torch.randperm(len(y), generator=generator)
        total = 0.0
        for batch in torch.tensor_split(order, batches):
            logits = head(trunk(_shifted(x[batch], side // _SHIFT_SHARE, generator)))
            loss = functional.cross_entropy(logits, y[batch], label_smoothing=_LABEL_SMOOTHING)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        if not np.isfinite(total):
            raise DataError(f"pretraining diverged in epoch {epoch + 1}: look for images that are all alike")
        progress((epoch + 1) / epochs, "pretraining the extractor")
    # Half precision halves what every client downloads; loading casts back.
    packed = {
        name: tensor.half() if tensor.ndim == 4 else tensor for name, tensor in trunk.state_dict().items()
    }
    return dump_extractor(packed, spec)


def _spec(images: NDArray[np.uint8], side: int) -> ExtractorSpec:
    """Channel statistics of the public images; a stem that keeps small inputs large and cheap enough."""
    channels = np.asarray(images, np.float64).reshape(-1, images.shape[3]) / 255.0
    mean, std = (np.broadcast_to(value, 3) for value in (channels.mean(axis=0), channels.std(axis=0)))
    return ExtractorSpec(
        architecture="resnet18",
        input_size=side,
        mean=(float(mean[0]), float(mean[1]), float(mean[2])),
        std=(float(max(std[0], 1e-3)), float(max(std[1], 1e-3)), float(max(std[2], 1e-3))),
        # 8×8 maps enter layer1 from 8, 16 and 32 px alike: smaller ones lose detail, larger ones cost fourfold.
        stem="small" if side <= SMALL_SIDE else "imagenet",
        stem_stride=1 if side <= SMALL_SIDE // 2 else 2,
    )


def initial_trunk(spec: ExtractorSpec, generator: torch.Generator) -> nn.Module:
    """A trunk as torchvision initialises it, drawn from our own generator."""
    trunk = Extractor(spec).trunk.train().requires_grad_(True)
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return trunk.to(memory_format=torch.channels_last)  # type: ignore[no-any-return]


def _shifted(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Every image moved by its own random offset, edges repeated."""
    if most == 0:
        return x
    n, _, height, width = x.shape
    padded = functional.pad(x, (most, most, most, most), mode="replicate")
    offset = torch.randint(0, 2 * most + 1, (2, n, 1), generator=generator)
    rows, columns = offset[0] + torch.arange(height), offset[1] + torch.arange(width)
    picked = padded.permute(0, 2, 3, 1)[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)
