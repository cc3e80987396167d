"""The output folder, whole or not at all: written beside its place, then renamed into it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fkd_common.errors import DataError, FkdError, UsageError
from fkd_shards.json_files import Manifest
from fkd_shards.plan import ANCHORS, PUBLIC, TEST
from fkd_shards.shard import MANIFEST_FILE

_OURS = re.compile(rf"shard\d+|{TEST}|{ANCHORS}|{PUBLIC}|{re.escape(MANIFEST_FILE)}")


def check_output(out: Path, force: bool) -> None:
    """Refuse an output place that holds something, unless it is an earlier data set and `--force` was given.

    Raises:
        UsageError: It does.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"--out {out} is a file: give a new or empty folder")
    entries = sorted(entry.name for entry in out.iterdir())
    if not entries:
        return
    if not force:
        raise UsageError(
            f"--out {out} is not empty: give a new or empty folder, or --force to replace a data set"
        )
    # --force on a home folder by mistake must not cost the home folder.
    foreign = [name for name in entries if not _OURS.fullmatch(name)]
    if not foreign:
        try:
            Manifest.read(out / MANIFEST_FILE)
        except DataError:
            foreign = [f"no valid {MANIFEST_FILE}"]
    if foreign:
        raise UsageError(f"--force replaces only data sets made by fkd-shards, but {out} has {foreign[0]}")


@contextmanager
def replaced_whole(out: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``out`` when the block succeeds, and vanishes when it fails.

    Raises:
        DataError: The disk is full or the place cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".new", dir=out.parent))
    except OSError as error:
        raise DataError(f"{out.parent} cannot be written: {error.strerror or error}") from error
    try:
        yield staging
        umask = os.umask(0)
        os.umask(umask)
        staging.chmod(0o777 & ~umask)  # mkdtemp made it private
        if out.exists() and any(out.iterdir()):
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
            out.rename(old)
            staging.rename(out)
            shutil.rmtree(old)
        else:
            staging.rename(out)
    except FkdError:
        raise
    except OSError as error:
        raise DataError(f"{out} could not be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
