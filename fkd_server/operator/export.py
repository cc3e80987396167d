"""`fkd-server export`: the published model with its extractor as one file that takes raw images."""

from __future__ import annotations

import argparse
import stat
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from fkd_common.artifacts import sha256_hex, write_atomically
from fkd_common.errors import ExitCode, UsageError
from fkd_common.exported_file import Candidate, ModelFiles, encode_exported
from fkd_common.given_path import given_path
from fkd_common.printable import printable
from fkd_common.program import OneSentenceParser
from fkd_common.stop_signals import stop_signals_raised
from fkd_server.operator.call import Operator, add_tls_flag
from fkd_server.operator.model_sources import from_coordinator, from_folder, newest_run


class Format(StrEnum):
    """What a model can be exported as."""

    SAFETENSORS = "safetensors"
    """Tensors and their description: what `fkd-client predict --model` takes."""
    ONNX = "onnx"
    TORCHSCRIPT = "torchscript"


_BY_ENDING = {".onnx": Format.ONNX, ".pt": Format.TORCHSCRIPT}
"""What a file's name says of its format, where --format does not."""


def main(arguments: list[str]) -> int:
    """Write the file; returns the exit code.

    Raises:
        FkdError: There is no model, it has no such candidate, or the file cannot be written.
    """
    given = _parser().parse_args(arguments)
    out: Path = given.out
    _check_out(out, force=given.force)
    encode = _encoder(Format(given.format or _BY_ENDING.get(out.suffix, Format.SAFETENSORS)))
    with stop_signals_raised():
        files = _files(given)
        blob = encode(files)
        try:
            write_atomically(out, blob)
        except OSError as error:
            raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
    header = files.header
    print(
        f"{printable(str(out))}: {len(blob):,} bytes, sha256 {sha256_hex(blob)}\n"
        f"run {header.run_id or '(no name)'}, candidate {header.candidate}, {len(header.classes)} classes; takes "
        f"uint8 images of shape N×3×{header.image_size}×{header.image_size}, gives scores and probabilities"
    )
    return ExitCode.OK


def _parser() -> OneSentenceParser:
    parser = OneSentenceParser(
        prog="fkd-server export",
        description="Write the published model with its extractor as one file that takes raw images.",
    )
    parser.add_argument(
        "--format",
        choices=[each.value for each in Format],
        help="(default: by the ending of --out: .onnx, .pt for torchscript, else safetensors)",
    )
    parser.add_argument("--out", type=given_path, required=True, help="file to write")
    parser.add_argument("--force", action="store_true", help="replace --out if it is there")
    parser.add_argument(
        "--candidate",
        choices=[each.value for each in Candidate],
        default=Candidate.PUBLISHED.value,
        help="whose scores the file gives (published: the winner of the vote)",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--run", type=given_path, help="folder of a run (default: the newest under ./run with a model)"
    )
    source.add_argument("--server", help="fetch the model from this coordinator, HOST:PORT, instead")
    add_tls_flag(parser, "with --server: ")
    return parser


def _check_out(out: Path, *, force: bool) -> None:
    if str(out) == "-":
        raise UsageError(
            "--out -: a model is written to a file, not to standard output (./- is a file's name)"
        )
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: expected a file in a folder that exists")
    try:
        there = out.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
    if not stat.S_ISREG(there):  # a device, for one, would be gone; a link may lead anywhere
        raise UsageError(
            f"--out {out}: expected the name of a file, and this is something else: a folder, a link, a device or such"
        )
    if not force:
        raise UsageError(f"--out {out} exists: choose another file, or replace it with --force")


def _files(given: argparse.Namespace) -> ModelFiles:
    candidate = Candidate(given.candidate)
    if given.server is None:
        return from_folder(given.run or newest_run(), candidate)
    with Operator.of(given) as operator:
        return from_coordinator(operator, candidate)


def _encoder(wanted: Format) -> Callable[[ModelFiles], bytes]:
    """What makes a format; a missing package is noticed before anything is fetched.

    Raises:
        UsageError: A package of the extra `export` is missing.
        ModuleNotFoundError: torch is missing.
    """
    if wanted is Format.SAFETENSORS:
        return encode_exported
    if wanted is Format.TORCHSCRIPT:
        from fkd_client.torchscript import as_torchscript

        return as_torchscript
    try:
        from fkd_client.onnx_file import as_onnx
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("onnx"):
            raise
        raise UsageError(f"{error.name} is not installed here: pip install 'fkd[export]'") from error
    return as_onnx
