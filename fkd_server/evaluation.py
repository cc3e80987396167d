"""Scores global models on a test shard, in a process of its own: JSON lines in, JSON lines out.

The coordinator starts ``python -m fkd_server.evaluation`` and imports nothing of it but
:class:`Evaluator`; torch lives and dies with the child.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from fkd_common.errors import FkdError
from fkd_server.method.federated_method import Json


@dataclass(frozen=True)
class EvaluationJob:
    """A model file to score, and the round it belongs to."""

    round: int
    model: Path


class Evaluator:
    """Scores models one after the other, in order, without holding up the run."""

    def __init__(
        self,
        test: Path,
        extractor: Path,
        extractor_sha256: str,
        cache: Path,
        threads: int,
        on_result: Callable[[int, dict[str, Json]], None],
    ) -> None:
        """Start the child; `on_result` gets round and accuracies, on the evaluator's own thread."""
        self._jobs: queue.SimpleQueue[EvaluationJob | None] = queue.SimpleQueue()
        self._on_result = on_result
        command = [
            sys.executable,
            "-m",
            "fkd_server.evaluation",
            str(test),
            str(extractor),
            extractor_sha256,
            str(cache),
            str(threads),
        ]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._work, name="evaluation", daemon=True)
        self._thread.start()

    def submit(self, job: EvaluationJob) -> None:
        """Queue a model; its file is removed once scored."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait for what is queued, then end the child."""
        self._jobs.put(None)
        self._thread.join()

    def kill(self) -> None:
        """End the child at once."""
        self._child.kill()
        self._child.wait()

    def _work(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        log = structlog.get_logger()
        while (job := self._jobs.get()) is not None:
            try:
                self._child.stdin.write(json.dumps({"model": str(job.model)}) + "\n")
                self._child.stdin.flush()
                answer = json.loads(self._child.stdout.readline())
            except (OSError, ValueError):
                answer = {"error": f"the evaluation process ended with status {self._child.wait()}"}
            if "error" in answer:
                log.error("evaluation_failed", round=job.round, detail=answer["error"])
                answer = {}
            self._on_result(job.round, answer)
            job.model.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        self._child.wait()


def main(arguments: list[str]) -> int:
    """The child: embed the test shard once, then score every model named on standard input."""
    from fkd_client.threads import limit_threads

    test, extractor_path, extractor_sha256, cache, threads = arguments
    limit_threads(int(threads))
    from fkd_client.embedding import embed_cached
    from fkd_client.extractor import load_extractor
    from fkd_client.global_model import GlobalModel
    from fkd_common.method.metrics import accuracy, per_class_recall
    from fkd_shards.shard import read_shard

    try:
        shard = read_shard(Path(test))
        if shard.labels is None:
            raise FkdError(f"{test} has no labels")
        extractor = load_extractor(Path(extractor_path))
        embeddings = embed_cached(Path(cache), extractor_sha256, extractor, shard, device="cpu")
        labels = shard.labels
    except FkdError as error:
        for _ in sys.stdin:
            print(json.dumps({"error": str(error)}), flush=True)
        return error.exit_code
    for line in sys.stdin:
        try:
            model = GlobalModel.load(Path(json.loads(line)["model"]))
            scores = model.candidate_logits(embeddings)
            result: dict[str, Json] = {name: accuracy(logits, labels) for name, logits in scores.items()}
            result["published"] = result[model.published]
            recall = per_class_recall(scores[model.published], labels, scores[model.published].shape[1])
            result["recall"] = [None if value != value else float(value) for value in recall]
            print(json.dumps(result), flush=True)
        except (FkdError, ValueError, KeyError) as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
