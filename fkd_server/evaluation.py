"""Scores global models on a test shard, in a process of its own: JSON lines in, JSON lines out.

The coordinator starts ``python -m fkd_server.evaluation`` and imports nothing of it but
:class:`Evaluator`; torch lives and dies with the child.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from fkd_common.errors import DataError, FkdError
from fkd_server.method.federated_method import Json

PATIENCE_S = 1800.0
"""A child that has said nothing for so long will not: it is ended."""


@dataclass(frozen=True)
class EvaluationJob:
    """A model file to score, and the round it belongs to."""

    round: int
    model: Path


class Evaluation(Protocol):
    """Scores models as they come."""

    def submit(self, job: EvaluationJob) -> None:
        """Take a model; its accuracies are told when they are known."""

    def waiting_for(self) -> str:
        """For a person: what is still to be scored; empty if nothing is."""

    def close(self) -> None:
        """Return when everything taken is scored."""

    def kill(self) -> None:
        """Give up what is not scored."""


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
        self._unscored: deque[int] = deque()
        self._activity = ""
        self._on_result = on_result
        self._killed = threading.Event()
        self._silent = threading.Event()
        self._log = structlog.get_logger()
        command = [sys.executable, "-m", "fkd_server.evaluation"]
        command += [str(test), str(extractor), extractor_sha256, str(cache), str(threads)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._work, name="evaluation", daemon=True)
        self._thread.start()

    def submit(self, job: EvaluationJob) -> None:
        """Queue a model."""
        self._unscored.append(job.round)
        self._jobs.put(job)

    def waiting_for(self) -> str:
        """For a person: what is still to be scored; empty if nothing is."""
        rounds = list(self._unscored) if self._thread.is_alive() else []
        if not rounds:
            return ""
        which = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {', '.join(map(str, rounds))}"
        return f"evaluation of {which}" + (f" ({self._activity})" if self._activity else "")

    def close(self) -> None:
        """Wait for what is queued, then end the child."""
        self._jobs.put(None)
        self._thread.join()

    def kill(self) -> None:
        """End the child at once: nothing is said of what it had not scored, so that it can be scored later."""
        self._killed.set()
        self._child.kill()
        self.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._killed.is_set():
            answer = self._ask(job)
            if "error" in answer:
                if self._killed.is_set():
                    break
                self._log.error("evaluation_failed", round=job.round, detail=answer["error"])
                answer = {}
            self._on_result(job.round, answer)
            self._unscored.popleft()
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        self._child.wait()

    def _ask(self, job: EvaluationJob) -> dict[str, Json]:
        """The child's answer about a model: accuracies, or what is wrong under "error"."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"model": str(job.model)}) + "\n")
            self._child.stdin.flush()
            while "activity" in (said := json.loads(self._next_line())):
                self._activity = f"{said['activity']}, {said['percent']} %"
        except (OSError, ValueError):
            self._child.kill()  # whatever it does, it no longer answers
            silence = f"it said nothing for {PATIENCE_S:.0f} s" if self._silent.is_set() else ""
            ended = f"it ended with status {self._child.wait()}"
            return {"error": f"the evaluation process gives no answer: {silence or ended}"}
        self._activity = ""
        answer: dict[str, Json] = said
        return answer

    def _next_line(self) -> str:
        """What the child says next; empty if it has ended, or has been silent for too long and was ended."""
        assert self._child.stdout is not None
        giving_up = threading.Timer(PATIENCE_S, self._give_up)
        giving_up.start()
        try:
            return self._child.stdout.readline()
        finally:
            giving_up.cancel()

    def _give_up(self) -> None:
        self._silent.set()
        self._child.kill()


def main(arguments: list[str]) -> int:
    """The child: embed the test shard once, then score every model named on standard input."""
    for stop in (signal.SIGINT, signal.SIGTERM):  # they reach a whole group; the coordinator decides
        signal.signal(stop, signal.SIG_IGN)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what a library prints is no answer
        return _score(arguments, lambda said: print(json.dumps(said), file=answers, flush=True))


def _score(arguments: list[str], say: Callable[[dict[str, Json]], None]) -> int:
    from fkd_client.threads import limit_threads

    test, extractor, extractor_sha256, cache, threads = arguments
    limit_threads(int(threads))

    def progress(fraction: float, activity: str) -> None:
        say({"activity": activity, "percent": round(100 * fraction)})

    try:
        score = model_scores(Path(test), Path(extractor), extractor_sha256, Path(cache), progress)
    except FkdError as error:
        for _ in sys.stdin:
            say({"error": str(error)})
        return error.exit_code
    for line in sys.stdin:
        try:
            say(score(Path(json.loads(line)["model"])))
        except (FkdError, OSError, ValueError, KeyError) as error:
            say({"error": f"{type(error).__name__}: {error}"})
    return 0


def model_scores(
    test: Path,
    extractor: Path,
    extractor_sha256: str,
    cache: Path,
    progress: Callable[[float, str], None],
) -> Callable[[Path], dict[str, Json]]:
    """Embed a test shard; what comes back scores model files on it. Loads torch.

    Args:
        test: Folder of a labelled shard.
        extractor: File of the extractor's artifact.
        extractor_sha256: Its hash.
        cache: Folder of cached embeddings.
        progress: Told how far the embedding is.

    Returns:
        From a model file to the accuracy of every candidate, of the "published" one, and its "recall" by class.

    Raises:
        DataError: The test shard has no labels, or it or the extractor cannot be read.
    """
    from fkd_client.embedding import embed_cached
    from fkd_client.extractor import load_extractor
    from fkd_client.published_scorer import scorer_of
    from fkd_common.method.metrics import accuracy, per_class_recall
    from fkd_common.model_file import decode_published
    from fkd_shards.shard import read_shard

    shard = read_shard(test)
    if shard.labels is None:
        raise DataError(f"{test} has no labels")
    labels, artifact = shard.labels, extractor.read_bytes()
    embeddings = embed_cached(
        cache, extractor_sha256, load_extractor(artifact), shard, device="cpu", progress=progress
    )

    def score(path: Path) -> dict[str, Json]:
        model = scorer_of(decode_published(path.read_bytes()), artifact)
        scores = model.candidate_logits(shard.images if model.takes_images else embeddings)
        result: dict[str, Json] = {name: accuracy(logits, labels) for name, logits in scores.items()}
        result["published"] = result[model.published]
        recall = per_class_recall(scores[model.published], labels, scores[model.published].shape[1])
        result["recall"] = [None if value != value else float(value) for value in recall]
        return result

    return score


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
