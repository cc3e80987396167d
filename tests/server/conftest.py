"""Runs to talk to; settings come from what a test says, not from the environment it happens to run in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fkd_common.tensors import encode
from fkd_server.prepare import ANCHORS_FILE, CLASSES_KEY, EXTRACTOR_FILE

from .tiny import ANCHORS, CLASSES, Site, TinyRun, tiny_run


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path)


@pytest.fixture
def sites(run: TinyRun) -> tuple[Site, Site]:
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    return a, b


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """What `fkd-server prepare` writes, without the torch that made it."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    (folder / EXTRACTOR_FILE).write_bytes(encode({"conv": np.zeros(3, dtype=np.float32)}))
    anchors = {"images": np.zeros((4, 1, 1, 3), dtype=np.uint8), "embeddings": ANCHORS}
    (folder / ANCHORS_FILE).write_bytes(encode(anchors, {CLASSES_KEY: json.dumps(CLASSES)}))
    return folder
