"""Every reader of foreign bytes: what was ever found stays fixed, and a second of looking finds nothing new.

`make fuzz SECONDS=600` looks longer.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="fuzzing needs atheris, which has no wheel for this platform")

from fkd_common.errors import FkdError

from .__main__ import CORPUS, NAMES, run_target
from .child import target_of

ROWS = {
    "tensors": (11, 19, 20, 21), "extractor": (20, 35), "model": (20,), "prepared": (29,), "shard": (39, 40),
    "npz": (19, 40), "image": (40,), "inert_pickle": (19,), "requests": (7, 10, 11, 13, 14, 20, 21, 22),
    "status": (34,), "registration": (34,), "tasks": (11,), "personal": (29,),
    "token": (15,), "certificate": (16,), "tls_folder": (31,), "enrolment": (15,), "secure_upload": (11,),
}  # fmt: skip


LOOKED_AT = ("tensors", "model", "exported", "requests", "registration", "tasks", "token", "secure_task")
"""Also looked at for a second each: those with most of our own code behind them."""


def cases(names: tuple[str, ...]) -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.scenario(*ROWS[name]) if name in ROWS else (), id=name)
        for name in names
    ]


@pytest.mark.parametrize("name", cases(NAMES))
def test_what_was_found_stays_fixed(name: str, tmp_path: Path) -> None:
    """The whole corpus, seeds and findings, is read or refused."""
    target = target_of(name)
    for number, path in enumerate(sorted((CORPUS / name).iterdir())):
        folder = tmp_path / str(number)
        folder.mkdir()
        with contextlib.suppress(FkdError):
            target.read(path.read_bytes(), folder)


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_second_of_looking_finds_nothing(name: str, tmp_path: Path) -> None:
    held, said = run_target(name, 1, tmp_path)
    assert held, said[-3000:]


def test_every_target_has_seeds() -> None:
    for name in NAMES:
        assert list((CORPUS / name).iterdir()), name


def test_a_finding_is_reported_and_kept(tmp_path: Path) -> None:
    """The harness can fail: a reader that does not refuse what it should is caught."""
    (tmp_path / "broken_target.py").write_text(
        "from tests.fuzz.target import Target\n"
        "def read(data, folder):\n"
        "    if data[:1] == b'!':\n"
        "        raise KeyError('no such tensor')\n"
        "TARGETS = (Target('tensors', read, lambda folder: {}),)\n"
    )
    child = (
        "import sys; import tests.fuzz; import broken_target; sys.modules['tests.fuzz.files'] = broken_target; "
        "from tests.fuzz.child import main; main()"
    )
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "one").write_bytes(b"!")
    done = subprocess.run(
        [sys.executable, "-c", child, "tensors", "--corpus", str(tmp_path / "corpus"), "--findings", str(tmp_path)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "no such tensor" in done.stderr + done.stdout
