"""What a run leaves on disk: config.yaml, rounds.jsonl, ledger.csv, model.safetensors, model card, summary."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from fkd_common.artifacts import TEMPORARY, write_atomically
from fkd_common.config import RunConfig
from fkd_common.errors import UsageError
from fkd_common.ledger import Ledger
from fkd_server.method.federated_method import Json
from fkd_server.resume import SUMMARY
from fkd_server.store import CONFIG, PREVIOUS

MODEL = "model.safetensors"
CARD = "MODEL_CARD.md"
LOCK = "lock"
"""Locked by the coordinator that serves the run; holds its process id."""


class RunFolder:
    """The folder of one run, held by one coordinator at a time."""

    def __init__(
        self, path: Path, advice: str = "stop that one, or give this one --new-run or another --runs folder"
    ) -> None:
        """Make the folder, or take it over, and lock it; the lock ends with the process, however it ends.

        Args:
            path: The folder.
            advice: What to do if another coordinator holds it.

        Raises:
            UsageError: Another coordinator holds it, or it cannot be made.
        """
        self.path = path
        self._made = not path.exists()
        if not self._made and path.is_dir() and not (path / LOCK).exists() and any(path.iterdir()):
            raise UsageError(f"{path} holds other files than a run's: choose another --run-id or --runs")
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (path / LOCK).open("a+")
        except OSError as error:
            raise UsageError(f"run folder {path} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                raise UsageError(f"run folder {path} cannot be locked: {error.strerror}") from error
            self._lock.seek(0)
            pid = self._lock.read().strip() or "unknown"
            raise UsageError(
                f"run {path} is served by another fkd-server (process {pid}): {advice}"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    @property
    def finished(self) -> bool:
        """Whether the run has its result."""
        return (self.path / SUMMARY).exists()

    def release(self) -> None:
        """Let another coordinator take the folder."""
        self._lock.close()

    def remove(self) -> None:
        """Remove the folder of a run that never started, if this process made it."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def remove_working_folders(self) -> None:
        """Remove what a finished run has no use for: unfinished uploads and the like."""
        for name in ("spool", "uploads", "evaluations"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / PREVIOUS).unlink(missing_ok=True)

    def write_config(self, config: RunConfig, classes: tuple[str, ...]) -> None:
        """The configuration the run was started with, as a file that ``--config`` takes."""
        text = f"# sha256 {config.sha256()}\n# classes: {', '.join(classes)}\n"
        text += yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        write_atomically(self.path / CONFIG, text.encode())

    def write_rounds(self, records: Sequence[Mapping[str, Json]]) -> None:
        """All lines so far, in the place of what an earlier process had written."""
        write_atomically(self.path / "rounds.jsonl", "".join(f"{json.dumps(r)}\n" for r in records).encode())

    def append_round(self, record: Mapping[str, Json]) -> None:
        """One line per round."""
        path = self.path / "rounds.jsonl"
        length = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, length)
            raise

    def write_ledger(self, ledger: Ledger) -> None:
        """Bytes by client, round, phase and direction."""
        write_atomically(self.path / "ledger.csv", ledger.to_csv().encode())

    def write_model(self, blob: bytes, card: str) -> None:
        """The published model's file, and its card."""
        self.write_card(card)
        write_atomically(self.path / MODEL, blob)

    def write_card(self, card: str) -> None:
        """What a reader should know of the model; on disk for certain once the summary is."""
        unfinished = self.path / f"{TEMPORARY}{CARD}"
        unfinished.write_text(card, encoding="utf-8")
        unfinished.replace(self.path / CARD)

    def write_summary(self, summary: Mapping[str, Json]) -> None:
        """The run's result as one JSON object."""
        with contextlib.suppress(FileNotFoundError), (self.path / CARD).open("rb") as card:
            os.fsync(card.fileno())
        write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2).encode())


def bytes_per_client(ledger: Ledger) -> dict[str, Json]:
    """Bytes of a run, mean over the clients that took part."""
    clients = max(1, len({key.client for key, _ in ledger.rows() if key.client}))
    total = ledger.total()

    def split(count: object) -> dict[str, Json]:
        values = asdict(count)  # type: ignore[call-overload]
        return {
            "payload": {"up": values["payload_up"] // clients, "down": values["payload_down"] // clients},
            "message": {"up": values["message_up"] // clients, "down": values["message_down"] // clients},
        }

    return {
        **split(total),
        "wasted": total.wasted // clients,
        "by_phase": {phase: split(count) for phase, count in ledger.by_phase().items()},
    }


def process_usage() -> dict[str, Json]:
    """Peak resident memory (MB) and CPU seconds of this process, without its children."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "peak_rss_mb": round(_peak_kib(usage.ru_maxrss) / 1024, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
    }


def _peak_kib(fallback: int) -> int:
    """Peak resident memory since this program began; Linux's ru_maxrss also counts the process that started it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return fallback
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), fallback)
