"""Targets that read files: tensors, extractors, models, shards, archives, images; no network, no torch."""

from __future__ import annotations

import io
import json
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fkd_common.artifacts import BlobStore, sha256_hex
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.exported_file import Candidate, ModelFiles, decode_exported, encode_exported
from fkd_common.extractor_artifact import (
    SPEC_KEY,
    ExtractorSpec,
    build_extractor_artifact,
    join_safetensors,
    read_extractor_spec,
    split_safetensors,
)
from fkd_common.method.residuals import AnchorCorrection, Standardiser
from fkd_common.method.student_layout import TensorSpec, initial_student
from fkd_common.model_file import ModelHeader, ModelParts, decode_model, encode_model
from fkd_common.tensors import check_schema, chunk_payload, decode, encode, metadata_of
from fkd_server.prepare import ANCHORS_FILE, CLASSES_KEY, EXTRACTOR_FILE, load_prepared
from fkd_shards.pictures import FilePictures
from fkd_shards.shard import open_data, read_shard, write_shard
from fkd_shards.sources.inert_pickle import read_inert_pickle
from fkd_shards.sources.npz import read_npz

from .framing import join, split
from .target import Target, demand

CLASSES = ("cat", "dog")
SCHEMA = {"a": TensorSpec((2, 3), "float32"), "n": TensorSpec((), "int64")}


def tensors(data: bytes, folder: Path) -> None:
    with suppress(FkdError):
        demand(0 <= chunk_payload(data, 0, len(data)) <= len(data), "payload is part of a chunk")
    with suppress(FkdError):
        metadata_of(data)
    found = decode(data)
    check_schema(found, SCHEMA)
    demand(bool(np.isfinite(found["a"]).all()), "what passed the schema is finite")
    demand({k: v.shape for k, v in found.items()} == {"a": (2, 3), "n": ()}, "what passed has its shapes")


def tensor_seeds(folder: Path) -> dict[str, bytes]:
    right = encode({"a": np.ones((2, 3), np.float32), "n": np.array(3)}, {"about": "a fuzzer"})
    nan = encode({"a": np.full((2, 3), np.nan, np.float32), "n": np.array(3)})
    types = ("float64", "float16", "uint8", "bool", "int32", "uint64", "int16")
    other = encode({name: np.zeros((1, 2), name) for name in types})
    rare = {
        kind: join_safetensors(
            {"a": {"dtype": kind, "shape": [2, 3], "data_offsets": [0, size]}}, bytes(size), {}
        )
        for kind, size in (("BF16", 12), ("F8_E4M3", 6))
    }
    return {"right": right, "nan": nan, "types": other, "empty": encode({}), **rare}


def extractor(data: bytes, folder: Path) -> None:
    weights, description = split(data, 2)
    with suppress(FkdError):
        read_extractor_spec(weights)
    with suppress(FkdError):
        header, body = split_safetensors(weights, name="fuzzed")
        demand(len(body) <= len(weights), "a body is part of its file")
        json.dumps(header)
    with suppress(FkdError):
        ExtractorSpec.from_json(description.decode(errors="replace"))
    (folder / "weights.safetensors").write_bytes(weights)
    (folder / "weights.json").write_bytes(description)
    packed = build_extractor_artifact(folder / "weights.safetensors")
    demand(read_extractor_spec(packed).input_size <= 4096, "what was packed can be read")


def extractor_seeds(folder: Path) -> dict[str, bytes]:
    spec = ExtractorSpec("resnet18", 32, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), stem="small")
    bare = encode({"conv1.weight": np.zeros((2, 3), np.float32)})
    header, body = split_safetensors(bare, name="seed")
    packed = join_safetensors(header, body, {SPEC_KEY: spec.to_json()})
    return {"packed": join(packed, b"{}"), "beside": join(bare, spec.to_json().encode())}


def model(data: bytes, folder: Path) -> None:
    parts = decode_model(data)
    demand(parts.header.published in ("student", "anchors", "moments"), "a model says what it publishes")


def model_seeds(folder: Path) -> dict[str, bytes]:
    config = RunConfig(hidden=(2,), dropout=(0.0,), personal=())
    h = np.array([[0, 0, 0], [2, 0, 1], [0, 4, 1], [2, 4, 2]], np.float32)
    header = ModelHeader(
        classes=CLASSES, published="anchors", config=config, moment_lambda=1.0, anchor_lambda=10.0,
        anchor_loo_r2=0.5, extractor_sha256="ab" * 32,
    )  # fmt: skip
    of = Standardiser.of(h)
    anchors = AnchorCorrection(of, np.ones((3, 2)), np.zeros(2), 10.0, 0.5)
    student = initial_student(0, 3, config.hidden, 2, config.norm)
    return {
        "whole": encode_model(ModelParts(header, student, of, anchors, np.zeros((6, 2), np.float32))),
        "plain": encode_model(ModelParts(header, student, of, None, None)),
    }


def exported(data: bytes, folder: Path) -> None:
    files = decode_exported(data)
    demand(decode_model(files.model).header.published == files.header.candidate, "it holds what it describes")
    demand(len(files.model) + len(files.extractor) < 3 * len(data) + 4096, "it does not grow by being read")


def exported_seeds(folder: Path) -> dict[str, bytes]:
    weights, _ = split(extractor_seeds(folder)["packed"], 2)
    seeds = {}
    for name, blob in model_seeds(folder).items():
        parts = decode_model(blob)
        header = parts.header.model_copy(
            update={
                "extractor_sha256": sha256_hex(weights),
                "published": "anchors" if parts.anchor_correction else "student",
            }
        )
        model = encode_model(replace(parts, header=header))
        seeds[name] = encode_exported(ModelFiles.of("run", model, weights, Candidate.PUBLISHED))
    return seeds


def prepared(data: bytes, folder: Path) -> None:
    anchors, weights = split(data, 2)
    (folder / ANCHORS_FILE).write_bytes(anchors)
    (folder / EXTRACTOR_FILE).write_bytes(weights)
    found = load_prepared(folder, BlobStore(folder / "blobs"))
    demand(found.anchor_embeddings.ndim == 2 and len(found.classes) >= 2, "what was loaded can start a run")


def prepared_seeds(folder: Path) -> dict[str, bytes]:
    tensors = {"images": np.zeros((3, 2, 2, 1), np.uint8), "embeddings": np.eye(3, dtype=np.float32)}
    anchors = encode(tensors, {CLASSES_KEY: json.dumps(CLASSES)})
    return {"prepared": join(anchors, encode({"w": np.zeros(1, np.float32)}))}


def shard(data: bytes, folder: Path) -> None:
    described, images, labels = split(data, 3)
    for name, content in (("shard.json", described), ("images.npy", images), ("labels.npy", labels)):
        (folder / name).write_bytes(content)
    with suppress(FkdError):
        read_shard(folder, verify=True)
    found = open_data(str(folder), classes=CLASSES, image_size=4)
    assert found.labels is not None
    demand(len(found.images) == len(found.labels) > 0, "every image has a label")
    demand(bool(((found.labels >= 0) & (found.labels < 2)).all()), "labels lie in 0..C-1")


def shard_seeds(folder: Path) -> dict[str, bytes]:
    images = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4, 1)
    write_shard(folder / "made", images, np.array([0, 1, 1]), classes=CLASSES, source="seed")
    names = ("shard.json", "images.npy", "labels.npy")
    return {"shard": join(*((folder / "made" / name).read_bytes() for name in names))}


def npz(data: bytes, folder: Path) -> None:
    (folder / "x.npz").write_bytes(data)
    source = read_npz(folder / "x.npz", known_classes=CLASSES)
    loaded = source.train.pictures.load(np.arange(min(4, len(source.train.labels))), 4)
    demand(loaded.images.dtype == np.uint8, "images are bytes")


def npz_seeds(folder: Path) -> dict[str, bytes]:
    images, labels = np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 1])
    picture = _encoded("PNG")
    joined = {
        "bytes_train": np.frombuffer(picture * 2, np.uint8), "y_train": labels,
        "offsets_train": np.array([0, len(picture), 2 * len(picture)]),
    }  # fmt: skip
    return {
        "plain": _npz(x=images, y=labels, classes=np.array(CLASSES)),
        "medmnist": _npz(
            train_images=images,
            train_labels=labels[:, None],
            val_images=images,
            val_labels=labels[:, None],
        ),
        "joined": _npz(**joined),
    }


def image(data: bytes, folder: Path) -> None:
    (folder / "x.png").write_bytes(data)
    loaded = FilePictures(folder, [folder / "x.png"]).load(np.arange(1), 8)
    demand(len(loaded.images) + len(loaded.bad) == 1, "an image is read or named as bad")


def image_seeds(folder: Path) -> dict[str, bytes]:
    return {kind.lower(): _encoded(kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")}


def inert_pickle(data: bytes, folder: Path) -> None:
    (folder / "batch").write_bytes(data)
    read_inert_pickle(folder / "batch")


def pickle_seeds(folder: Path) -> dict[str, bytes]:
    batch = {b"data": np.zeros((2, 12), np.uint8), b"labels": [0, 1], b"filenames": [b"a", b"b"]}
    made = {f"protocol{n}": pickle.dumps(batch, protocol=n) for n in (0, 2, 4)}
    return {**made, "hostile": b"cos\nsystem\n(S'true'\ntR."}


def _encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.arange(75, dtype=np.uint8).reshape(5, 5, 3)).save(stream, kind)
    return stream.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


TARGETS = (
    Target("tensors", tensors, tensor_seeds),
    Target("extractor", extractor, extractor_seeds),
    Target("model", model, model_seeds),
    Target("exported", exported, exported_seeds),
    Target("prepared", prepared, prepared_seeds),
    Target("shard", shard, shard_seeds),
    Target("npz", npz, npz_seeds),
    Target("image", image, image_seeds),
    Target("inert_pickle", inert_pickle, pickle_seeds),
)
