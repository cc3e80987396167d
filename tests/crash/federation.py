"""Real coordinator and scripted clients as processes that can be killed and started again; asserts nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from fkd_common.tensors import Tensors, encode
from fkd_server.prepare import ANCHORS_FILE, CLASSES_KEY, EXTRACTOR_FILE
from tests.e2e.programs import Program, free_port

from .history import Acknowledged

NAMES = ("a", "b", "c")
CLASSES = ("cat", "dog")
ANCHORS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
HIDDEN = 8
PHASES = ("student", "residuals", "moments", "refine_1", "votes", "personal")
"""Every round has all of them."""


class Federation:
    """One run: a coordinator that may die, and clients that may."""

    def __init__(self, folder: Path, rounds: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.run_folder = folder / "run" / "run"
        self.port = free_port()
        self.programs: list[Program] = []
        self._rounds = rounds
        self._prepared = _prepared(folder / "prepared")

    def server(self, **environment: str) -> Program:
        """Start the coordinator, or start it again."""
        flags = [
            "--prepared", str(self._prepared), "--port", str(self.port), "--runs", str(self.folder / "run"),
            "--run-id", "run", "--rounds", str(self._rounds), "--residual-every", "1", "--personal-every", "1",
            "--personal", "prior", "--hidden", str(HIDDEN), "--dropout", "0", "--norm", "layer",
            "--moment-features", "embedding", "--refine-steps", "1", "--no-correction-at-start",
            "--update-codec", "fp32", "--model-codec", "fp32", "--statistics-codec", "fp32",
            "--lambda-grid", "1,10", "--anchor-lambda-grid", "1,10", "--min-clients", str(len(NAMES)),
            "--quorum", "1", "--clients-per-round", "1", "--heartbeat-s", "0.2", "--heartbeat-limit-s", "20",
            "--phase-deadline-s", "120",
        ]  # fmt: skip
        return self._start("server", ["fkd_server.cli", *flags], environment)

    def client(self, name: str, **environment: str) -> Program:
        """Start a client, or start it again."""
        return self._start(name, ["tests.crash.scripted_client", name, f"127.0.0.1:{self.port}"], environment)

    def _start(self, name: str, arguments: list[str], environment: dict[str, str]) -> Program:
        own = {key: value for key, value in os.environ.items() if not key.startswith("FKD_")}
        program = Program(name, arguments, {**own, "OMP_NUM_THREADS": "1", **environment})
        self.programs.append(program)
        return program

    def acknowledgements(self) -> list[Acknowledged]:
        """Every acknowledgement any client received."""
        events = (event for program in self.programs for event in program.events)
        return [Acknowledged.of(event) for event in events if event["event"] == "acknowledged"]

    def model_hash(self) -> str:
        """Of the published model."""
        return str(json.loads((self.run_folder / "summary.json").read_text())["model_hash"])

    def stop(self) -> None:
        """End every process."""
        for program in self.programs:
            program.stop()


def _prepared(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / EXTRACTOR_FILE).write_bytes(encode({"conv": np.zeros(700, dtype=np.float32)}))
    anchors: Tensors = {"images": np.zeros((len(ANCHORS), 1, 1, 3), dtype=np.uint8), "embeddings": ANCHORS}
    (folder / ANCHORS_FILE).write_bytes(encode(anchors, {CLASSES_KEY: json.dumps(CLASSES)}))
    return folder
