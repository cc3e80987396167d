"""``python -m examples.three_hospitals``: starts the story in namespaces of its own, and ends them with it."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from .hosts import NamespacesError, own_namespaces
from .inside import TRANSCRIPT

_STORY = f"{__package__}.inside"


def main() -> int:
    """Run the example; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.three_hospitals",
        description="Three hospitals, a hub and an operator on this machine, from bare hosts to personal models.",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="new folder that keeps the hosts' disks")
    parser.add_argument("--transcript", type=Path, metavar="FILE", help="also write what is shown to a file")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _stopped)
    folder = Path(tempfile.mkdtemp(prefix="three-hospitals-"))
    try:
        code = _tell(folder)
        if given.transcript is not None and code == 0:
            shutil.copyfile(folder / TRANSCRIPT, given.transcript)
        return code
    except NamespacesError as error:
        print(f"three_hospitals: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            shutil.move(folder, given.keep)


def _tell(folder: Path) -> int:
    """Whatever becomes of the story, nothing it started outlives this."""
    story = [sys.executable, "-m", _STORY, str(folder)]
    checkout = Path(__file__).parents[2]
    process = subprocess.Popen(
        [*own_namespaces(), *story], cwd=checkout, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        return process.wait()
    finally:
        process.kill()  # its children, the first processes of their namespaces, end with it, and all others with them
        process.wait()


def _stopped(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
