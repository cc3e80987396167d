"""`fkd-bench client-time`: what one client computes, in CPU seconds by part, beside another checkout's client.

A real `fkd-client` in a process of its own, alone in its federation; its own report says what its phases took. CPU
seconds, because a busy machine stretches the clock's and hardly theirs.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from fkd_bench.federation import Federation, make_federation
from fkd_bench.narrator import Narrator
from fkd_bench.processes import ClientProgram, run_processes
from fkd_bench.settings import BenchSettings
from fkd_common.errors import ExitCode, UsageError
from fkd_common.settings import load_settings
from fkd_server.prepare import EXTRACTOR_FILE, prepare

Json = dict[str, Any]

NOW, BEFORE = "now", "before"
_DECODED = 512
"""Pictures whose decoding is timed."""


class ClientTimeSettings(BenchSettings):
    """Settings of `fkd-bench client-time`: those of `fkd-bench run`, for one client of 5,000 images."""

    data: str = "digits"
    """Source of `fkd-shards create`."""
    clients: int = Field(1, ge=1, le=1)
    """The client that is timed."""
    min_cohort: int = Field(1, ge=1)
    """It is alone."""
    partition: str = "iid"
    """It has every class: its teacher grows the most trees."""
    limit: int | None = Field(5500, ge=1)
    """Training images including the anchors, and test images."""
    rounds: int = Field(3, ge=1)
    """Rounds."""
    local_steps: int | None = Field(150, ge=1)
    """Local mini-batches per round."""
    residual_every: int = Field(3, ge=1)
    """Corrections are computed every this many rounds, and in the last."""
    repeats: int = Field(3, ge=1)
    """First runs of each client, in turn, every one with an empty cache; medians are told."""
    again: int = Field(1, ge=0)
    """How many of them are followed by a second one, which finds the cache filled."""
    against: Path | None = None
    """Another checkout of this repository, whose `fkd-client` is timed as well."""
    out: Path = Path("bench/client-time")
    """Folder for shards, caches, runs and logs; its caches are emptied."""


def client_time(arguments: list[str]) -> int:
    """Entry point of the verb; returns the exit code."""
    settings = load_settings(ClientTimeSettings, "fkd-bench client-time", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    if settings.against is not None and not (settings.against / "fkd_client" / "cli.py").is_file():
        raise UsageError(
            f"--against {settings.against} is no checkout of this repository: it has no fkd_client/cli.py "
            "(git worktree add FOLDER COMMIT makes one)"
        )
    settings = settings.model_copy(update={"out": settings.out.absolute()})
    narrator = Narrator()
    federation = make_federation(settings, settings.seed, narrator)
    found = measured(_prepared(federation, narrator), settings, narrator)
    print(json.dumps(found) if settings.json_output else table(found))
    return ExitCode.OK


def _prepared(federation: Federation, narrator: Narrator) -> Federation:
    """The same with the coordinator's part done: it would be done anew for every run."""
    narrator.narrate_logs(federation.folder / "logs")
    settings, folder = federation.settings, federation.folder / "prepared"
    anchors, public = federation.shards / "anchors", federation.shards / "public"
    prepare(settings.extractor, anchors, public, folder, settings.seed, settings.threads)
    return dataclasses.replace(federation, prepared=folder)


def measured(federation: Federation, settings: ClientTimeSettings, narrator: Narrator) -> Json:
    """Median CPU seconds of a client by part, in a first run and in a second on the same data."""
    checkouts = {NOW: None, **({BEFORE: settings.against.absolute()} if settings.against else {})}
    first: dict[str, list[Json]] = {name: [] for name in checkouts}
    second: dict[str, list[Json]] = {name: [] for name in checkouts}
    for repeat in range(settings.repeats):
        for name, checkout in checkouts.items():
            program = ClientProgram(checkout, federation.folder / f"cache-{name}")
            shutil.rmtree(federation.folder / f"cache-{name}", ignore_errors=True)
            for runs in (first, second) if repeat < settings.again else (first,):
                which = "a first run" if runs is first else "a second run"
                narrator.say(f"{name}: {which}, {repeat + 1} of {settings.repeats}")
                runs[name].append(run_processes(federation, narrator, program).reports[0])
    answer: Json = {
        "samples": first[NOW][0]["samples"],
        "rounds": settings.rounds,
        "local_steps": settings.local_steps,
        "repeats": settings.repeats,
        "threads": settings.threads,
        "embedding": embedding_parts(federation, settings.threads),
    }
    for name in checkouts:
        answer[name] = {"first": _medians(first[name])}
        if settings.again:
            answer[name]["second"] = _medians(second[name])
    if BEFORE in answer:
        answer["ratio"] = {which: _ratios(answer[NOW][which], answer[BEFORE][which]) for which in answer[NOW]}
    return answer


def embedding_parts(federation: Federation, threads: int, repeats: int = 3) -> dict[str, float]:
    """CPU seconds of everything between a shard's pictures and its cached embeddings, least of `repeats`.

    Args:
        federation: Divided and prepared.
        threads: Of torch.
        repeats: How often each part is timed.

    Returns:
        ``decode`` (lossless WebP files, which a prepared shard has behind it), ``preprocess``, ``forward`` (the bare
        loop over prepared batches), ``embed`` (all of it but decoding), ``store`` (hash and write), ``load`` (read
        and verify), and ``ratio``: the bare loop's seconds to those of ``embed``.
    """
    import torch

    from fkd_client.array_cache import read_array, write_array
    from fkd_client.embedding import BATCH_SIZE, embed, preprocess
    from fkd_client.extractor import load_extractor
    from fkd_client.threads import limit_threads
    from fkd_shards.pictures import decode
    from fkd_shards.shard import read_shard

    limit_threads(threads)
    assert federation.prepared is not None
    extractor = load_extractor(federation.prepared / EXTRACTOR_FILE)
    images = np.asarray(read_shard(federation.shards / federation.client_names[0]).images)
    firsts = range(0, len(images), BATCH_SIZE)
    files = [_picture_file(image) for image in images[:_DECODED]]
    batches = [preprocess(images[first : first + BATCH_SIZE], extractor.spec) for first in firsts]

    def forward() -> None:
        with torch.inference_mode():
            for batch in batches:
                extractor(batch)

    embeddings, kept = embed(extractor, images), federation.folder / "parts.npy"
    parts = {
        "decode": lambda: [decode(file, None) for file in files],
        "preprocess": lambda: [preprocess(images[f : f + BATCH_SIZE], extractor.spec) for f in firsts],
        "forward": forward,
        "embed": lambda: embed(extractor, images),
        "store": lambda: write_array(kept, embeddings.shape, iter([embeddings])),
        "load": lambda: read_array(kept),
    }
    rounds = [{name: _cpu_seconds(part) for name, part in parts.items()} for _ in range(repeats)]
    took = {name: min(timed[name] for timed in rounds) for name in parts}
    kept.unlink()
    took["decode"] *= len(images) / len(files)
    return {**took, "ratio": took["forward"] / took["embed"]}


def table(found: Json) -> str:
    """The medians as a Markdown table."""
    checkouts = [name for name in (BEFORE, NOW) if name in found]
    columns = [(which, name) for which in found[NOW] for name in checkouts]
    rows = [
        ["part", *(f"{which} run, {name}" for which, name in columns)],
        ["---", *("---:" for _ in columns)],
        *(
            [part, *(f"{found[name][which].get(part, 0.0):.2f}" for which, name in columns)]
            for part in found[NOW]["first"]
        ),
    ]
    parts = ", ".join(f"{name} {value:.3f}" for name, value in found["embedding"].items())
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\nembedding: {parts}"


def _picture_file(image: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image.squeeze(axis=2) if image.shape[2] == 1 else image).save(file, "WEBP", lossless=True)
    return file.getvalue()


def _cpu_seconds(part: Callable[[], object]) -> float:
    start = time.process_time()
    part()
    return time.process_time() - start


def _medians(reports: Sequence[Json]) -> dict[str, float]:
    phases = reports[0]["cpu_seconds"]
    found = {name: statistics.median(report["cpu_seconds"][name] for report in reports) for name in phases}
    other = found["process"] - sum(value for name, value in found.items() if name != "process")
    return {**found, "process": found["process"], "start and messages": round(other, 3)}


def _ratios(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value / before[name], 3) for name, value in now.items() if before.get(name)}
