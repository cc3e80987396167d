"""`fkd-shards`: flags in, tables or JSON out, errors to exit codes; nothing is decided here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fkd_common.errors import DataError, ExitCode
from fkd_common.given_path import given_path
from fkd_common.printable import printable
from fkd_common.program import OneSentenceParser, run_program
from fkd_shards.bad_images import DEFAULT_MAX_BAD
from fkd_shards.json_files import Manifest
from fkd_shards.partitions import Partition
from fkd_shards.shard import IMAGES_FILE, MANIFEST_FILE, SHARD_FILE, read_shard
from fkd_shards.tables import manifest_caption, manifest_table, shard_caption, shard_table

_PLAIN_WIDTH = 240
_SHOWN_BAD = 5


def main(argv: list[str] | None = None) -> int:
    """Run `fkd-shards`.

    Args:
        argv: Arguments without the program name; None takes the process's own.

    Returns:
        An :class:`~fkd_common.errors.ExitCode`.
    """
    return run_program("fkd-shards", "shards", lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    flags = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = flags.command
    return command(flags)


def _parser() -> OneSentenceParser:
    parser = OneSentenceParser(prog="fkd-shards", description="Image data sets as shards for clients.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = commands.add_parser("create", help="divide a data set among clients", allow_abbrev=False)
    create.set_defaults(command=_create)
    create.add_argument(
        "--source",
        required=True,
        metavar="SRC",
        help="digits, npz:FILE, or folder|cifar10|cifar100|stl10|fashion-mnist:DIR, or just a path",
    )
    create.add_argument("--clients", required=True, type=int, metavar="K", help="number of shards")
    create.add_argument(
        "--partition",
        required=True,
        metavar="P",
        help="dirichlet:ALPHA, iid, classes:Q, longtail:FACTOR or sites",
    )
    create.add_argument("--seed", required=True, type=int, metavar="S", help="decides everything random")
    create.add_argument("--out", required=True, type=given_path, metavar="DIR", help="new or empty folder")
    create.add_argument(
        "--anchors", type=int, default=500, metavar="M", help="unlabelled images set aside (500)"
    )
    create.add_argument("--public", type=int, default=0, metavar="N", help="labelled images set aside (0)")
    create.add_argument(
        "--test-fraction",
        type=float,
        default=0.2,
        metavar="F",
        help="share of each class held out where the source publishes no test part (0.2)",
    )
    create.add_argument("--image-size", type=int, metavar="N", help="resize and crop to N×N pixels")
    create.add_argument(
        "--max-bad",
        type=float,
        default=DEFAULT_MAX_BAD,
        metavar="F",
        help=f"share of unusable images that is skipped rather than refused ({DEFAULT_MAX_BAD})",
    )
    create.add_argument(
        "--limit", type=int, metavar="N", help="use at most N random training and N test images"
    )
    create.add_argument(
        "--few-shot", type=int, metavar="N", help="a client keeps at most N samples of each class"
    )
    create.add_argument(
        "--flipped-clients",
        type=float,
        default=0.0,
        metavar="F",
        help="share of the clients whose every label c is made C-1-c (0)",
    )
    create.add_argument(
        "--label-noise",
        type=float,
        default=0.0,
        metavar="F",
        help="share of a client's labels made others (0)",
    )
    create.add_argument("--force", action="store_true", help="replace a data set made earlier")
    create.add_argument("--json", action="store_true", help="print the manifest as JSON")
    inspect = commands.add_parser("inspect", help="print what a folder holds", allow_abbrev=False)
    inspect.set_defaults(command=_inspect)
    inspect.add_argument(
        "folder", type=given_path, metavar="DIR", help="output of create, or one shard in it"
    )
    inspect.add_argument("--verify", action="store_true", help="also compare every sha256")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _create(flags: argparse.Namespace) -> int:
    from fkd_shards.create import CreateRequest, create
    from fkd_shards.label_faults import LabelFaults

    request = CreateRequest(
        source=flags.source,
        clients=flags.clients,
        partition=Partition.parse(flags.partition),
        seed=flags.seed,
        out=flags.out,
        anchors=flags.anchors,
        public=flags.public,
        test_fraction=flags.test_fraction,
        image_size=flags.image_size,
        max_bad=flags.max_bad,
        limit=flags.limit,
        force=flags.force,
        few_shot=flags.few_shot,
        faults=LabelFaults(flags.flipped_clients, flags.label_noise),
    )
    manifest = create(request)
    for image in manifest.bad[:_SHOWN_BAD]:
        print(f"fkd-shards: skipped {printable(f'{image.name}: {image.reason}')}", file=sys.stderr)
    if manifest.num_bad > _SHOWN_BAD:
        print(f"fkd-shards: skipped {manifest.num_bad} images in all, see {MANIFEST_FILE}", file=sys.stderr)
    _show(
        flags.json, manifest.model_dump_json(indent=2), manifest_table(manifest), manifest_caption(manifest)
    )
    return ExitCode.OK


def _inspect(flags: argparse.Namespace) -> int:
    folder: Path = flags.folder
    if (folder / MANIFEST_FILE).exists():
        manifest = Manifest.read(folder / MANIFEST_FILE)
        for name, part in manifest.parts.items():
            shard = read_shard(folder / name, verify=flags.verify)
            if shard.sha256 != part.sha256:
                raise DataError(
                    f"{folder / name} is not the part that {MANIFEST_FILE} describes: create it anew"
                )
        _show(
            flags.json,
            manifest.model_dump_json(indent=2),
            manifest_table(manifest),
            manifest_caption(manifest),
        )
    elif (folder / SHARD_FILE).exists() or (folder / IMAGES_FILE).exists():
        shard = read_shard(folder, verify=flags.verify)
        described = {
            "name": shard.name,
            "classes": shard.classes,
            "image_shape": shard.images.shape[1:],
            "num_samples": shard.num_samples,
            "class_counts": None
            if shard.labels is None
            else shard.class_counts(len(shard.classes or ())).tolist(),
            "sha256": shard.sha256,
        }
        _show(flags.json, json.dumps(described, indent=2), shard_table(shard), shard_caption(shard))
    else:
        raise DataError(
            f"{folder} holds neither {MANIFEST_FILE} nor {SHARD_FILE}: give a folder made by create"
        )
    return ExitCode.OK


def _show(as_json: bool, text: str, table: Table, caption: str) -> None:
    if as_json:
        print(text)
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    console.print(table)
    print(caption)
