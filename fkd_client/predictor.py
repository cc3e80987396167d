"""A finished model with its extractor, ready for images: finds and checks the files; prints nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightgbm.basic import LightGBMError
from numpy.typing import NDArray

from fkd_client.embedding import embed, preprocess
from fkd_client.exchange import PERSONAL_FILE
from fkd_client.extractor import Extractor, load_extractor
from fkd_client.global_model import GlobalModel
from fkd_client.personal import PersonalModel
from fkd_client.personal_file import DESCRIPTION_FILE, TENSORS_FILE, load_personal, read_origin
from fkd_client.published_scorer import scorer_of
from fkd_common.artifacts import blob_file, sha256_hex
from fkd_common.choices import FinetuneScope, PersonalKind
from fkd_common.errors import DataError, FkdError, MethodError, UsageError
from fkd_common.exported_file import EXPORT_KEY, decode_exported, read_whole
from fkd_common.extractor_artifact import MAX_IMAGE_BYTES, ExtractorSpec, build_extractor_artifact
from fkd_common.method.probabilities import softmax
from fkd_common.model_file import EXCHANGE_KEY, HEADER_KEY, ExchangeModel, decode_model, decode_published
from fkd_common.places import RUNS, newest_file
from fkd_common.tensors import metadata_of
from fkd_shards.arrays import checked_classes

_MISFITS = (
    KeyError,
    ValueError,
    IndexError,
    TypeError,
    AttributeError,
    RuntimeError,
    LightGBMError,
    FkdError,
)
"""What scoring with tensors, trees and options that do not belong together ends in."""

_Scores = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True)
class Predictor:
    """Scores images; what it is made of was tried once."""

    about: str
    """For a person: which model this is."""
    classes: tuple[str, ...]
    spec: ExtractorSpec
    """How images must be prepared for its extractor."""
    _scores: _Scores

    def __post_init__(self) -> None:
        """Try it: parts that do not fit together are noticed before the first image.

        Raises:
            DataError: They do not.
        """
        blank = np.zeros((1, self.image_size, self.image_size, 3), np.uint8)
        try:
            shape = self._scores(blank).shape
        except _MISFITS as error:
            cause = error.__cause__ if isinstance(error, MethodError) else error
            why = f"it lacks {cause}" if isinstance(cause, KeyError) else error
            raise DataError(f"the {self.about} does not fit together: {why}") from error
        if shape != (1, len(self.classes)):
            raise DataError(f"the {self.about} scores {shape[1:]} classes and names {len(self.classes)}")

    @property
    def image_size(self) -> int:
        """Side of the square images that it takes, in pixels."""
        return self.spec.input_size

    def images_at_once(self, most: int) -> int:
        """How many images, `most` or fewer, this machine is to decode and score at a time."""
        return min(most, self.spec.images_within(MAX_IMAGE_BYTES))

    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Class probabilities.

        Args:
            images: (n, s, s, 3) uint8.

        Returns:
            (n, C), rows sum to 1.
        """
        return softmax(self._scores(images))


@dataclass(frozen=True)
class ExtractorSearch:
    """Where a model's extractor is looked for."""

    given: Path | None
    """The file a person names, if any; nothing else is then looked at."""
    artifacts: Path
    """The folder in which this machine keeps what it has received."""

    def find(self, sha256: str, run: Path) -> Extractor:
        """The extractor with that hash; see :meth:`artifact`."""
        return load_extractor(self.artifact(sha256, run))

    def artifact(self, sha256: str, run: Path) -> bytes:
        """The extractor's artifact with that hash.

        Args:
            sha256: Of the artifact, hexadecimal.
            run: The folder of the model's run: a coordinator on this machine has the extractor there.

        Raises:
            DataError: It is nowhere, or is damaged.
        """
        if re.fullmatch("[0-9a-f]{64}", sha256) is None:
            raise DataError(f"the model names its extractor {sha256[:80]!r}; expected a SHA-256")
        if self.given is not None:
            return self._given(self.given, sha256)
        places = [blob_file(folder, sha256) for folder in (self.artifacts, run / "blobs")]
        found = next((path for path in places if path.is_file()), None)
        if found is None:
            raise DataError(
                f"the model needs the extractor with sha256 {sha256}, which is not in {self.artifacts}: give its file "
                "with --extractor (the coordinator of the run has it in the run's folder, under blobs), or, if the "
                "client had --cache CACHE, --artifacts CACHE/artifacts"
            )
        blob = read_whole(found)
        if sha256_hex(blob) != sha256:
            raise DataError(f"{found} is damaged: its content does not match its name; remove it")
        return blob

    @staticmethod
    def _given(path: Path, sha256: str) -> bytes:
        """The artifact in a file, or of the weights in it, as a coordinator makes it from `--extractor FILE`."""
        blob = read_whole(path)
        if sha256_hex(blob) != sha256:
            blob = build_extractor_artifact(path)
        if sha256_hex(blob) != sha256:
            raise DataError(
                f"--extractor {path}: the model needs the extractor with sha256 {sha256}, not this"
            )
        return blob


def newest_personal(runs: Path = RUNS) -> Path:
    """The folder of the personal model that was made last.

    Raises:
        UsageError: There is none.
    """
    newest = newest_file(runs, f"*/client-*/{DESCRIPTION_FILE}", f"*/client-*/{PERSONAL_FILE}")
    if newest is None:
        raise UsageError(
            f"no personal model in {runs.absolute()}: give --model FOLDER (run/<id>/client-<name>), or a model made by "
            "fkd-server export"
        )
    return newest.parent


def open_model(path: Path, extractors: ExtractorSearch, device: str) -> Predictor:
    """The model in a folder or file, of whichever kind.

    Args:
        path: A personal model's folder, a run's folder or its model.safetensors, or an exported model; of any method.
        extractors: Where to look for the extractor; an exported model brings its own.
        device: Where the extractor runs.

    Raises:
        DataError: There is no model, it is damaged, or its extractor is not to be had.
        UsageError: Its method is not installed here.
    """
    if (path / DESCRIPTION_FILE).is_file():
        return _personal(path, extractors, device)
    file = path
    if path.is_dir():
        file = path / (PERSONAL_FILE if (path / PERSONAL_FILE).is_file() else TENSORS_FILE)
    blob = read_whole(file)
    try:
        keys = metadata_of(blob)
    except FkdError as error:
        raise DataError(f"{file} is no model: {_EXPECTED}") from error
    if EXPORT_KEY in keys:
        exported = decode_exported(blob)
        about = f"global model of run {exported.header.run_id}"
        extractor, model = load_extractor(exported.extractor), decode_model(exported.model)
    elif EXCHANGE_KEY in keys:
        return _of_another_method(file, blob, extractors, device)
    elif HEADER_KEY in keys:
        model = decode_model(blob)
        about = "published global model"
        extractor = extractors.find(model.header.extractor_sha256, file.parent)
    else:
        raise DataError(f"{file} is not a whole model: {_EXPECTED}")
    scorer, extractor = GlobalModel.of(model), extractor.to(device)
    classes = checked_classes(model.header.classes, str(file))

    def scores(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return scorer.logits(embed(extractor, images, device=device))

    return Predictor(f"{about} ({scorer.published})", classes, extractor.spec, scores)


_EXPECTED = (
    "expected a personal model's folder, a run's model.safetensors, or a file made by fkd-server export --format "
    "safetensors"
)


def _of_another_method(file: Path, blob: bytes, extractors: ExtractorSearch, device: str) -> Predictor:
    """A global or personal model in its method's own tensors."""
    model = decode_published(blob)
    assert isinstance(model, ExchangeModel)
    personal = file.name == PERSONAL_FILE
    folder = file.absolute().parent
    artifact = extractors.artifact(model.header.extractor_sha256, folder.parent if personal else folder)
    scorer, extractor = scorer_of(model, artifact, device), load_extractor(artifact).to(device)
    about = f"{'personal' if personal else 'published global'} model of {model.header.config.method}"
    classes = checked_classes(model.header.classes, str(file))

    def scores(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        inputs = images if scorer.takes_images else embed(extractor, images, device=device)
        return scorer.candidate_logits(inputs)[scorer.published]

    return Predictor(about, classes, extractor.spec, scores)


def _personal(folder: Path, extractors: ExtractorSearch, device: str) -> Predictor:
    origin, model = read_origin(folder), load_personal(folder)
    classes = checked_classes(origin.classes, str(folder))
    extractor = extractors.find(origin.extractor_sha256, folder.parent).to(device)
    scope = _unfrozen(model)

    def scores(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        h = embed(extractor, images, device=device)
        inputs = None
        if scope is not None:
            with torch.inference_mode():
                inputs = (
                    extractor.stem_forward(preprocess(images, extractor.spec).to(device), scope).cpu().numpy()
                )
        return model.scores(model.chosen, h, inputs, device=device)

    about = f"personal model of {origin.client}, run {origin.run_id} ({model.chosen})"
    return Predictor(about, classes, extractor.spec, scores)


def _unfrozen(model: PersonalModel) -> FinetuneScope | None:
    """The part of the extractor that the chosen candidate brings its own weights for, if any."""
    if model.chosen != PersonalKind.FINETUNE or model.finetuned is None:
        return None
    return None if model.finetuned.scope is FinetuneScope.HEAD else model.finetuned.scope
