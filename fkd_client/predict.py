"""`fkd-client predict`: classes of image files, by a finished model; nothing is learnt, nothing is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fkd_common.errors import DataError, ExitCode
from fkd_common.given_path import given_path
from fkd_common.places import cache_folder
from fkd_common.printable import printable
from fkd_common.program import OneSentenceParser

if TYPE_CHECKING:
    from fkd_client.prediction_output import Prediction
    from fkd_client.predictor import Predictor

_BATCH = 64
"""Images decoded and scored at a time; fewer where they are large."""


def main(arguments: list[str]) -> int:
    """Predict; returns the exit code.

    Raises:
        DataError: There is no model to use, or images could not be read; the others have been predicted.
        UsageError: A flag is wrong.
    """
    given = _parser().parse_args(arguments)
    from fkd_client.threads import limit_threads

    limit_threads(given.threads)
    from fkd_client.cli import choose_device
    from fkd_client.prediction_output import output_for
    from fkd_client.predictor import ExtractorSearch, newest_personal, open_model

    path = given.model or newest_personal()
    predictor = open_model(
        path, ExtractorSearch(given.extractor, given.artifacts), choose_device(given.device)
    )
    print(f"fkd-client: {printable(predictor.about)}, from {printable(str(path))}", file=sys.stderr)
    output = output_for(given.json, given.csv, given.top)
    asked, bad = 0, 0
    for files in _batches(_images(given.images), predictor.images_at_once(_BATCH)):
        predictions, problems = _predicted(predictor, files, given.top)
        asked, bad = asked + len(files), bad + len(problems)
        output.add(predictions)
        for problem in problems:
            print(f"fkd-client: {printable(problem)}", file=sys.stderr)
    output.end()
    if not asked:
        raise DataError("no images in what was given")
    if bad:
        raise DataError(f"{bad} of {asked} images could not be read, as said above")
    return ExitCode.OK


def _parser() -> OneSentenceParser:
    parser = OneSentenceParser(
        prog="fkd-client predict",
        description="Say which class each image shows, by this site's personal model or by an exported global one.",
    )
    parser.add_argument(
        "images",
        nargs="+",
        type=given_path,
        metavar="IMAGE",
        help="image files, folders of them, or - for names on standard input, one a line",
    )
    parser.add_argument(
        "--model",
        type=given_path,
        help="a personal model's folder, run/<id>/client-<name> (default: the newest under ./run), or a file made by "
        "fkd-server export --format safetensors",
    )
    parser.add_argument(
        "--extractor",
        type=given_path,
        help="file of the extractor that the model needs (default: looked for in --artifacts)",
    )
    parser.add_argument(
        "--artifacts",
        type=given_path,
        default=Path(os.environ.get("FKD_ARTIFACTS") or cache_folder() / "artifacts"),
        help="folder of received extractors (default: $FKD_ARTIFACTS, else artifacts in the cache)",
    )
    parser.add_argument("--top", type=_positive, default=1, metavar="K", help="how many classes to name (1)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a line")
    form.add_argument("--csv", action="store_true", help="comma-separated values with a heading")
    parser.add_argument(
        "--device", default="auto", help="auto (a GPU if there is one), cpu, or such as cuda:0"
    )
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


_positive.__name__ = "number"  # argparse names it: invalid number value


def _images(given: Iterable[Path]) -> Iterator[Path]:
    """The files that are meant."""
    from fkd_shards.sources.folder import image_files

    for path in given:
        if str(path) == "-":
            yield from (Path(line.rstrip("\n")) for line in sys.stdin if line.strip())
        elif path.is_dir():
            yield from image_files(path)
        else:
            yield path


def _batches(files: Iterator[Path], size: int) -> Iterator[list[Path]]:
    while batch := list(islice(files, size)):
        yield batch


def _predicted(predictor: Predictor, files: list[Path], top: int) -> tuple[list[Prediction], list[str]]:
    """What the model says about those that can be read, and what is wrong with the others."""
    import numpy as np

    from fkd_client.prediction_output import Prediction
    from fkd_shards.pictures import FilePictures

    loaded = FilePictures(Path("/"), [path.absolute() for path in files]).load(
        np.arange(len(files)), predictor.image_size
    )
    unread = [path for path, kept in zip(files, loaded.kept, strict=True) if not kept]
    problems = [f"{path} cannot be read: {bad.reason}" for path, bad in zip(unread, loaded.bad, strict=True)]
    read = [path for path, kept in zip(files, loaded.kept, strict=True) if kept]
    if not read:
        return [], problems
    probabilities = predictor.probabilities(loaded.images)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    predictions = [
        Prediction(str(path), tuple((predictor.classes[c], float(row[c])) for c in order))
        for path, row, order in zip(read, probabilities, best, strict=True)
    ]
    return predictions, problems
