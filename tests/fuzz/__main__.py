"""`make fuzz`: every target for its share of the time, each in its own process; keeps what it finds."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .child import MODULES

CORPUS = Path(__file__).parent / "corpus"
"""Small inputs to start from, and every input that ever was a finding: kept with the tests."""

NAMES = tuple(name for names in MODULES.values() for name in names)
GRACE_S = 60
"""A process may take this much longer than it was told: imports, and a last slow input."""

MEMORY = Path("/dev/shm")
"""Where it exists, inputs are written to memory rather than to a disk that is asked to sync."""


def run_target(name: str, seconds: int, findings: Path) -> tuple[bool, str]:
    """Fuzz or, for 0 seconds, replay one target.

    Args:
        name: A target.
        seconds: How long to look for new inputs.
        findings: Folder for inputs that broke a promise.

    Returns:
        Whether every promise held, and what the process said.
    """
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        corpus = Path(scratch) / "corpus"  # a copy: what libFuzzer adds is not for the repository
        shutil.copytree(CORPUS / name, corpus)
        command = [sys.executable, "-m", "tests.fuzz.child", name, "--corpus", str(corpus)]
        command += ["--findings", str(findings.absolute()), "--seconds", str(seconds)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + GRACE_S,
            env={**os.environ, "TMPDIR": scratch, "OMP_NUM_THREADS": "1"},
        )
    return done.returncode == 0, done.stdout + done.stderr


def write_seeds() -> None:
    """Write the seeds of every target into the corpus, beside what earlier findings left there."""
    from . import answers, credentials, files, personal, requests, secure, tasks

    for module in (files, requests, answers, tasks, personal, credentials, secure):
        for target in module.TARGETS:
            folder = CORPUS / target.name
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                for name, content in target.seeds(Path(scratch)).items():
                    (folder / name).write_bytes(content)


def main() -> int:
    """Run all targets, or those named; 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=NAMES, help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--write-seeds", action="store_true", help="renew the seeds of the corpus and stop")
    arguments = parser.parse_args()
    if arguments.write_seeds:
        write_seeds()
        return 0
    broken = 0
    for name in arguments.targets:
        held, said = run_target(name, max(1, arguments.seconds // len(arguments.targets)), arguments.findings)
        runs = re.search(r"number_of_executed_units: (\d+)", said)
        print(
            f"{name:14} {runs.group(1) if runs else '?':>9} inputs  {'held' if held else 'BROKEN'}",
            flush=True,
        )
        if not held:
            broken += 1
            print(said[-3000:])
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
