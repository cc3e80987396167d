"""The frozen feature extractor f_θ: artifact to network, and the split at the unfrozen part; no files written.

The trunk is torchvision's ResNet18 without ``fc``. Personalisation (Eq. 9) unfreezes the end of ``layer4``:
activations *entering* that part can be cached, so that the trunk never runs twice on the same image.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torchvision.models import ResNet18_Weights, resnet18

from fkd_common.choices import FinetuneScope
from fkd_common.errors import DataError
from fkd_common.extractor_artifact import (
    SPEC_KEY,
    ExtractorSpec,
    build_extractor_artifact,
    read_extractor_spec,
    split_safetensors,
)

__all__ = [
    "EMBEDDING_DIM",
    "Extractor",
    "ExtractorSpec",
    "blank_tail",
    "dump_extractor",
    "imagenet_extractor_artifact",
    "load_extractor",
]

EMBEDDING_DIM = 512


class Extractor(nn.Module):
    """A ResNet18 trunk, frozen, in evaluation mode whatever is asked of it.

    Attributes:
        spec: how its input must be prepared.
    """

    def __init__(self, spec: ExtractorSpec) -> None:
        super().__init__()
        self.spec = spec
        # No default initialisation: it would draw from torch's global generator, shared by all threads.
        with torch.device("meta"):
            trunk = resnet18(weights=None)
            if spec.stem == "small":
                trunk.conv1 = nn.Conv2d(3, 64, 3, stride=spec.stem_stride, padding=1, bias=False)
                trunk.maxpool = nn.Identity()
        trunk.fc = nn.Identity()
        self.trunk = trunk.to_empty(device="cpu")
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Extractor:
        """Evaluation mode only: BatchNorm statistics of a frozen extractor never move."""
        super().train(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings: (n, 3, s, s) prepared float32 images → (n, 512)."""
        embedding: Tensor = self.trunk(x)
        return embedding

    def stem_forward(self, x: Tensor, scope: FinetuneScope) -> Tensor:
        """What enters the unfrozen part of `scope`: (n, 3, s, s) → (n, c, a, a), or (n, 512) for ``head``."""
        t = self.trunk
        x = t.layer3(t.layer2(t.layer1(t.maxpool(t.relu(t.bn1(t.conv1(x)))))))
        if scope is FinetuneScope.LAYER4:
            return x
        x = t.layer4[0](x)
        if scope is FinetuneScope.BLOCK:
            return x
        return self.tail_forward(x, FinetuneScope.BLOCK)

    def tail_forward(self, x: Tensor, scope: FinetuneScope) -> Tensor:
        """The rest, frozen: `stem_forward`'s output → (n, 512)."""
        if scope is FinetuneScope.HEAD:
            return x
        t = self.trunk
        part = t.layer4 if scope is FinetuneScope.LAYER4 else t.layer4[1]
        return torch.flatten(t.avgpool(part(x)), 1)

    def tail(self, scope: FinetuneScope) -> nn.Module:
        """A trainable *copy* of the unfrozen part with the pooling behind it: `stem_forward`'s output → (n, 512).

        The copy is in evaluation mode, so BatchNorm normalises with the frozen statistics; keep it there.
        """
        if scope is FinetuneScope.HEAD:
            return nn.Identity()
        part = self.trunk.layer4 if scope is FinetuneScope.LAYER4 else self.trunk.layer4[1]
        tail = nn.Sequential(
            OrderedDict(part=copy.deepcopy(part), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())
        )
        return tail.requires_grad_(True).eval()


def blank_tail(scope: FinetuneScope) -> nn.Module:
    """A tail whose weights are yet to be loaded; every extractor's is built alike."""
    return Extractor(ExtractorSpec("resnet18", 32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))).tail(scope)


def load_extractor(source: str | Path | bytes) -> Extractor:
    """An extractor from an artifact (see :mod:`fkd_common.extractor_artifact`).

    Args:
        source: path or bytes of the artifact; half-precision weights are cast to float32.

    Raises:
        DataError: not an artifact, or its tensors are not those of the trunk it describes.
    """
    name = "extractor" if isinstance(source, bytes) else f"extractor {source}"
    try:
        raw = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}") from error
    split_safetensors(raw, name=name)  # caps the header before safetensors sees it
    spec = read_extractor_spec(raw, name=name)
    try:
        tensors = load_tensors(raw)
    except Exception as error:  # safetensors raises its own, undocumented, exception types
        raise DataError(f"{name} cannot be read: {error}") from error
    extractor = Extractor(spec)
    expected = extractor.trunk.state_dict()
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        raise DataError(
            f"{name} is not a {spec.architecture} trunk: {_listed('missing', missing, 'extra', extra)}"
        )
    for key, want in expected.items():
        got = tensors[key]
        if got.shape != want.shape:
            raise DataError(
                f"{name}: tensor {key} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
            )
        tensors[key] = got.to(want.dtype)
        if want.is_floating_point() and not bool(torch.isfinite(tensors[key]).all()):
            raise DataError(f"{name}: tensor {key} holds values that are not finite")
    extractor.trunk.load_state_dict(tensors)
    return extractor.to(memory_format=torch.channels_last)


def dump_extractor(trunk: dict[str, Tensor], spec: ExtractorSpec) -> bytes:
    """The artifact of a trunk's state dict (without ``fc``) and its description."""
    tensors = {key: value.detach().cpu().contiguous() for key, value in trunk.items()}
    return save_tensors(tensors, metadata={SPEC_KEY: spec.to_json()})


def extractor_artifact(extractor: str) -> bytes:
    """The artifact of what a person names: ``resnet18`` (ImageNet weights) or a .safetensors file.

    Raises:
        DataError: the weights cannot be had or read.
    """
    return imagenet_extractor_artifact() if extractor == "resnet18" else build_extractor_artifact(extractor)


def imagenet_extractor_artifact() -> bytes:
    """The artifact of torchvision's ImageNet ResNet18, 224 px; downloads the weights unless torch has them cached.

    Raises:
        DataError: the weights cannot be downloaded here.
    """
    weights = ResNet18_Weights.IMAGENET1K_V1
    try:
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except Exception as error:  # urllib, OSError and RuntimeError (hash) all mean: not to be had here
        raise DataError(
            f"the ImageNet weights cannot be downloaded ({type(error).__name__}: {error}): "
            "give a local extractor with --extractor PATH, or pretrain one on public images"
        ) from error
    spec = ExtractorSpec("resnet18", 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    trunk = {key: value for key, value in state.items() if not key.startswith("fc.")}
    for key in [
        k for k in Extractor(spec).trunk.state_dict() if k.endswith("num_batches_tracked") and k not in trunk
    ]:
        trunk[key] = torch.zeros((), dtype=torch.int64)  # the published file predates the counter
    return dump_extractor(trunk, spec)


def _listed(missing_label: str, missing: list[str], extra_label: str, extra: list[str]) -> str:
    parts = []
    for label, names in ((missing_label, missing), (extra_label, extra)):
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            parts.append(f"{label} {', '.join(names[:8])}{more}")
    return "; ".join(parts)
