"""One target in a process of its own: replays inputs or lets atheris look for more; ends with its first finding."""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import atheris
import structlog

INSTRUMENTED = ["fkd_common", "fkd_server", "fkd_client", "fkd_shards"]
MODULES = {
    "files": (
        "tensors",
        "extractor",
        "model",
        "exported",
        "prepared",
        "shard",
        "npz",
        "image",
        "inert_pickle",
    ),
    "requests": ("requests",),
    "credentials": ("token", "certificate", "tls_folder", "enrolment"),
    "secure": ("secure_upload", "secure_task"),
    "answers": ("status", "registration"),
    "tasks": ("tasks",),
    "personal": ("personal",),
}
"""Where each target lives: a process imports, and instruments, only what its target needs."""

MAX_INPUT_BYTES = 1 << 16
MAX_RSS_MB = 3000


def target_of(name: str) -> Any:
    """The target of a name; imports its module."""
    module = next(module for module, targets in MODULES.items() if name in targets)
    targets = import_module(f"tests.fuzz.{module}").TARGETS
    return next(target for target in targets if target.name == name)


def main() -> None:
    """Run one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.child")
    parser.add_argument("target")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=0, help="0: only replay the corpus")
    arguments = parser.parse_args()
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        target = target_of(arguments.target)
    from fkd_common.errors import FkdError

    warnings.simplefilter("ignore")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())

    def one(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                target.read(data, Path(folder))
            except FkdError as error:
                if not str(error):
                    raise AssertionError("a refusal says why") from error
            except BaseException:
                traceback.print_exc()
                raise

    inherited = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    )  # Linux keeps the parent's peak over exec
    flags = [
        f"-max_len={MAX_INPUT_BYTES}", f"-timeout={target.seconds_per_input}",
        f"-rss_limit_mb={MAX_RSS_MB + inherited}",
        "-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={arguments.findings}/{target.name}-",
    ]  # fmt: skip
    inputs = [str(path) for path in sorted(arguments.corpus.iterdir())]
    flags += [f"-max_total_time={arguments.seconds}", str(arguments.corpus)] if arguments.seconds else inputs
    mutators = {}
    if target.mutate is not None:
        structured = target.mutate

        def mutate(data: bytes, max_size: int, seed: int) -> bytes:
            choice = random.Random(seed).random()
            return structured(data, max_size, seed) if choice < 0.7 else bytes(atheris.Mutate(data, max_size))

        mutators = {"custom_mutator": mutate}
    atheris.Setup([sys.argv[0], *flags], one, **mutators)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
