"""The extractor artifact: one safetensors file that carries its own description; bytes only, no torch.

A coordinator without torch can pack, hash and serve an extractor; ``fkd_client.extractor`` turns it into
a network. Layout: 8-byte little-endian header length, JSON header, tensor bytes (safetensors). The
description travels in the header's ``__metadata__`` under :data:`SPEC_KEY`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fkd_common.errors import DataError

SPEC_KEY = "fkd.extractor"
MAX_HEADER_BYTES = 1 << 20
"""A longer header is refused before anything of that size is allocated."""

MAX_IMAGE_BYTES = 2 << 30
"""An extractor that needs more memory for one image is refused: its weights, a small file, do not show it."""

ARCHITECTURE = "resnet18"
STEMS = ("imagenet", "small")
_PIXEL_BYTES = 3 * (1 + 1 + 4 + 4)
"""A pixel as decoded, copied, scaled and moved to the device."""
_FIRST_LAYER_BYTES = 4 * 64 * 4
"""64 channels of float32, four times: a residual block holds its input, two results and the library's own copy."""


@dataclass(frozen=True)
class ExtractorSpec:
    """How images must be prepared for an extractor, and which trunk its weights fit."""

    architecture: str
    """``resnet18``: the torchvision trunk without ``fc``, 512 features."""
    input_size: int
    """Side in pixels of the square, resized input."""
    mean: tuple[float, float, float]
    """Channel means subtracted after division by 255."""
    std: tuple[float, float, float]
    """Channel deviations divided by after the mean is subtracted."""
    stem: str = "imagenet"
    """``imagenet`` (7×7 stride 2, max-pool) or ``small`` (3×3 of `stem_stride`, no pool)."""
    stem_stride: int = 2
    """Stride of the first convolution."""

    def __post_init__(self) -> None:
        if self.architecture != ARCHITECTURE:
            raise DataError(
                f"extractor architecture {self.architecture!r} is unknown: expected {ARCHITECTURE!r}"
            )
        if self.stem not in STEMS:
            raise DataError(f"extractor stem {self.stem!r} is unknown: expected one of {', '.join(STEMS)}")
        if not 1 <= self.input_size <= 4096:
            raise DataError(f"extractor input size {self.input_size} is not within 1 … 4096 pixels")
        if not 1 <= self.stem_stride <= 4:
            raise DataError(f"extractor stem stride {self.stem_stride} is not within 1 … 4")
        if self.stem == "imagenet" and self.stem_stride != 2:
            raise DataError("an imagenet stem has stride 2")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(0 < s < float("inf") for s in self.std):
            raise DataError("extractor mean and std need three values each, std above 0")
        if self.image_bytes > MAX_IMAGE_BYTES:
            raise DataError(
                f"an extractor with inputs of {self.input_size}×{self.input_size} pixels and stem stride "
                f"{self.stem_stride} needs {self.image_bytes / 1e9:.1f} GB of memory for one image: at most "
                f"{MAX_IMAGE_BYTES / 1e9:.1f} GB are used"
            )

    @property
    def image_bytes(self) -> int:
        """About what one image takes, at most, on its way through: pixels, and first activations several times."""
        side = -(-self.input_size // self.stem_stride)
        return _PIXEL_BYTES * self.input_size**2 + _FIRST_LAYER_BYTES * side**2

    def images_within(self, memory: int) -> int:
        """How many images at a time take no more than so many bytes; at least one."""
        return max(1, memory // self.image_bytes)

    def to_json(self) -> str:
        """The description as JSON with sorted keys: equal descriptions give equal text."""
        fields = {
            "architecture": self.architecture,
            "input": {"size": self.input_size, "mean": list(self.mean), "std": list(self.std)},
            "stem": self.stem,
            "stem_stride": self.stem_stride,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a description; keys beyond those needed (training notes, reference figures) are ignored.

        Args:
            text: JSON with ``architecture`` and ``input: {size, mean, std}``; optional ``stem``, ``stem_stride``.

        Raises:
            DataError: the text is not such a description.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            image = fields["input"]
            named = str(fields["architecture"])
            mean, std = (tuple(float(v) for v in image[key]) for key in ("mean", "std"))
            return cls(
                architecture=ARCHITECTURE if ARCHITECTURE in named else named,
                input_size=int(image["size"]),
                mean=mean,  # type: ignore[arg-type]  # length checked in __post_init__
                std=std,  # type: ignore[arg-type]
                stem=str(fields.get("stem", "imagenet")),
                stem_stride=int(fields.get("stem_stride", 2)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                "an extractor description needs architecture and input {size, mean, std}; "
                f"this one does not read as such ({type(error).__name__}: {error})"
            ) from error


def build_extractor_artifact(weights_path: str | Path, spec_json_path: str | Path | None = None) -> bytes:
    """Pack a safetensors weight file and its description into one artifact.

    Args:
        weights_path: safetensors file of the trunk; tensor bytes are taken over unchanged.
        spec_json_path: its JSON description. None: the description inside the file if it has one,
            else the ``.json`` file beside it.

    Returns:
        The artifact: equal inputs give equal bytes.

    Raises:
        DataError: a file is missing or damaged, or the JSON's sha256 is another file's.
    """
    weights = Path(weights_path)
    raw = _read(weights)
    header, body = split_safetensors(raw, name=str(weights))
    beside = weights.with_suffix(".json")
    embedded = (header.get("__metadata__") or {}).get(SPEC_KEY)
    if spec_json_path is None and embedded is None and not beside.is_file():
        raise DataError(
            f"extractor {weights} comes without a description: put its JSON beside it as {beside.name}"
        )
    if spec_json_path is None and embedded is not None:
        text = str(embedded)
    else:
        path = beside if spec_json_path is None else Path(spec_json_path)
        text = _decode(_read(path), str(path))
        _check_sha256(text, raw, weights)
    return join_safetensors(header, body, {SPEC_KEY: ExtractorSpec.from_json(text).to_json()})


def read_extractor_spec(artifact: bytes, *, name: str = "extractor") -> ExtractorSpec:
    """The description inside an artifact.

    Raises:
        DataError: not a safetensors file, or one without a description.
    """
    header, _ = split_safetensors(artifact, name=name)
    text = (header.get("__metadata__") or {}).get(SPEC_KEY)
    if not isinstance(text, str):
        raise DataError(f"{name} carries no {SPEC_KEY!r} description: pack it with build_extractor_artifact")
    return ExtractorSpec.from_json(text)


def split_safetensors(raw: bytes, *, name: str) -> tuple[dict[str, Any], memoryview]:
    """Header and tensor bytes of a safetensors file, every tensor's extent checked against the file.

    Raises:
        DataError: the bytes are not a safetensors file.
    """
    if len(raw) < 8:
        raise DataError(f"{name} is not a safetensors file: {len(raw)} bytes")
    length = int.from_bytes(raw[:8], "little")
    if length > MAX_HEADER_BYTES or 8 + length > len(raw):
        raise DataError(
            f"{name} is not a safetensors file: header of {length} bytes in a file of {len(raw)} "
            f"(at most {MAX_HEADER_BYTES} are read)"
        )
    try:
        header = json.loads(raw[8 : 8 + length])
        body = memoryview(raw)[8 + length :]
        end = 0
        for tensor, entry in header.items():
            if tensor == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= len(body)):
                raise ValueError(f"tensor {tensor} lies outside the file")
            end = max(end, last)
        if end != len(body):
            raise ValueError(f"tensors end at byte {end}, the file at {len(body)}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{name} is not a safetensors file: {error}") from error
    return header, body


def join_safetensors(header: dict[str, Any], body: bytes | memoryview, metadata: dict[str, str]) -> bytes:
    """A safetensors file of these tensors with `metadata` in place of what the header had."""
    tensors = {key: value for key, value in header.items() if key != "__metadata__"}
    text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


def _check_sha256(description: str, raw: bytes, weights: Path) -> None:
    try:
        expected = json.loads(description).get("sha256")
    except (ValueError, AttributeError):
        return  # ExtractorSpec.from_json says what is wrong
    found = hashlib.sha256(raw).hexdigest()
    if expected is not None and expected != found:
        raise DataError(f"extractor {weights} has sha256 {found}, its JSON says {expected}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not a JSON file: {error}") from error
