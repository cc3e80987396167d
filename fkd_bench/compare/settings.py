"""What `fkd-bench compare` can be told."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from fkd_bench.compare.source_files import DATA_FOLDER
from fkd_common.errors import UsageError
from fkd_common.given_path import given_folder, given_path
from fkd_common.program import OneSentenceParser

CACHE = ".cache"
"""Beside the folders of experiments, whose names begin with a letter or digit."""


@dataclass(frozen=True)
class CompareSettings:
    """One call of `fkd-bench compare`."""

    experiment: str
    out: Path
    workers: int | None
    seeds: tuple[int, ...] | None
    methods: tuple[str, ...]
    only: tuple[tuple[str, str], ...]
    ray: str | None
    dry_run: bool
    report_only: bool
    data_folder: Path | None
    tensorboard: Path | None
    mlflow: str | None
    publish: Path | None

    @property
    def variables(self) -> dict[str, str]:
        """What ``${NAME}`` stands for in an experiment's file."""
        return variables_with(self.data_folder)

    @property
    def local_workers(self) -> int:
        """Cells that run at once on this machine: as many as there are cores, unless told otherwise."""
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def command(self) -> str:
        """What a reader types to make the same, whatever is on this machine."""
        data = " --data-folder DIR" if self.data_folder is not None or DATA_FOLDER in os.environ else ""
        return f"fkd-bench compare {Path(self.experiment).name}{data}"


def compare_parser() -> OneSentenceParser:
    """The flags of `fkd-bench compare`."""
    parser = OneSentenceParser(
        prog="fkd-bench compare",
        description="Run methods side by side, as an experiment's file says, and write tables and a report.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("experiment", nargs="?", metavar="NAME|FILE", help="a ready experiment, or a .yaml file")
    add("--list", action="store_true", help="name the ready experiments, with what they cost")
    add("--out", type=given_folder, default=Path("bench/compare"), metavar="DIR", help="(bench/compare)")
    add("--workers", type=_count, metavar="N", help="cells that run at once (one per core)")
    add("--seeds", type=_seeds, metavar="S,S", help="instead of the experiment's")
    add("--methods", type=_words, default=(), metavar="M,M", help="run these alone, by name or label")
    add("--only", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="run these cells alone")
    add("--dry-run", action="store_true", help="list the cells, and how long they will take")
    add("--report-only", action="store_true", help="write the report anew from results.jsonl")
    add("--data-folder", type=given_path, metavar="DIR", help=f"where data lie; else ${DATA_FOLDER}")
    add("--publish", type=given_folder, metavar="DIR", help="copy tables, figures and one row per cell there")
    add("--ray", metavar="ADDRESS", help="run the cells on a Ray cluster, or on one of this machine: local")
    add("--tensorboard", type=given_folder, metavar="DIR", help="also write curves for TensorBoard")
    add("--mlflow", metavar="URI", help="also write curves to an MLflow server or folder")
    return parser


def compare_settings(flags: argparse.Namespace) -> CompareSettings:
    """Flags as settings.

    Raises:
        UsageError: No experiment is named, or two flags do not go together.
    """
    if flags.experiment is None:
        raise UsageError(
            "which experiment? give a name or a .yaml file (fkd-bench compare --list names them)"
        )
    if flags.dry_run and flags.report_only:
        raise UsageError("--dry-run writes nothing and --report-only writes a report: give one of them")
    return CompareSettings(
        experiment=flags.experiment,
        out=flags.out,
        workers=flags.workers,
        seeds=flags.seeds,
        methods=flags.methods,
        only=tuple(flags.only),
        ray=flags.ray,
        dry_run=flags.dry_run,
        report_only=flags.report_only,
        data_folder=flags.data_folder,
        tensorboard=flags.tensorboard,
        mlflow=flags.mlflow,
        publish=flags.publish,
    )


def variables_with(data_folder: Path | None) -> dict[str, str]:
    """The environment, and in it the folder of data if it was given as a flag.

    Raises:
        UsageError: It is no folder.
    """
    if data_folder is None:
        return dict(os.environ)
    if not data_folder.is_dir():
        raise UsageError(f"--data-folder {data_folder} is no folder")
    return {**os.environ, DATA_FOLDER: str(data_folder.absolute())}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 expected, got {text!r}")
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"whole numbers as in 0,1,2 expected, got {text!r}")
    return tuple(dict.fromkeys(int(word) for word in words))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"KEY=VALUE expected, as in partition=dirichlet:0.1, got {text!r}")
    return key.strip(), value.strip()
