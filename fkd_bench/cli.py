"""`fkd-bench`: flags in, one federation or measurement, tables or JSON out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from fkd_common.errors import ExitCode, UsageError
from fkd_common.program import OneSentenceParser, run_program
from fkd_common.settings import load_settings
from fkd_common.stop_signals import stop_signals_raised

_USAGE = """usage: fkd-bench run --data SRC [--clients K] [--partition P] [--transport process|inprocess] ...
       fkd-bench compare EXPERIMENT|FILE.yaml|--list [--data-folder DIR] [--workers N] [--publish FOLDER] ...
       fkd-bench reproduce FOLDER [--cell ROW] [--data-folder DIR]
       fkd-bench embedding --data SHARD --extractor FILE
       fkd-bench hostile [--attacks A,B] [--hostile-shares 0.1,0.2] [--aggregations mean,median] ...
       fkd-bench privacy --noise-multiplier S [--rounds R] [--residual-every N] ...
       fkd-bench client-time --data SRC --extractor FILE [--against CHECKOUT] ...
       fkd-bench load [--clients K] [--rounds R] [--model student|resnet18|FILE] [--against flower] ...
       fkd-bench codecs [--model student|resnet18|FILE]
       fkd-bench growth [--steps S] [--trees T]

run          a whole federation on this machine: accuracy, bytes, seconds (fkd-bench run --help)
compare      many methods on many divisions of the data: tables, plots, a report (fkd-bench compare --help)
reproduce    one cell of a committed result again, and whether it comes out the same
embedding    embedding throughput against a bare forward loop, measured side by side
hostile      what hostile clients do to every model under every aggregation (fkd-bench hostile --help)
privacy      the epsilon of a run with noise, before it is run
client-time  CPU seconds of one client by part, beside another checkout's client
load         what a coordinator costs with clients that compute nothing (fkd-bench load --help)
codecs       what packing and unpacking cost with each codec: CPU seconds, bytes, error
growth       how the cost of a round's parts grows with clients, samples, classes and the embedding
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return ExitCode.OK if arguments else ExitCode.USAGE
    return run_command(lambda: _main(arguments))


def run_command(command: Callable[[], int]) -> int:
    """Carry out a command as a program does; what it started, and its folders, end with it."""

    def until_stopped() -> int:
        with stop_signals_raised():
            return command()

    return run_program("fkd-bench", "bench", until_stopped)


def _main(arguments: list[str]) -> int:
    commands = {
        "run": _run,
        "compare": _compare,
        "reproduce": _reproduce,
        "embedding": _embedding,
        "hostile": _hostile,
        "privacy": _privacy,
        "client-time": _client_time,
        "load": _load,
        "codecs": _codecs,
        "growth": _growth,
    }
    command = commands.get(arguments[0])
    if command is None:
        raise UsageError(f"unknown command {arguments[0]!r}: expected {', '.join(commands)}")
    return command(arguments[1:])


def _run(arguments: list[str]) -> int:
    from fkd_bench.federation import make_federation
    from fkd_bench.narrator import Narrator
    from fkd_bench.processes import run_processes
    from fkd_bench.results import print_result, print_summary, result_object, summarise
    from fkd_bench.settings import BenchSettings, TransportKind
    from fkd_bench.simulation import run_inprocess

    settings = load_settings(BenchSettings, "fkd-bench run", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    inprocess = settings.transport is TransportKind.INPROCESS
    narrator, results = Narrator(), []
    for seed in settings.seeds or (settings.seed,):
        federation = make_federation(settings, seed, narrator)
        outcome = (run_inprocess if inprocess else run_processes)(federation, narrator)
        results.append(result_object(outcome, seed, shared_process=inprocess))
        kept = federation.folder / "run" / outcome.summary["run_id"] / "result.json"
        kept.write_text(json.dumps(results[-1], indent=2))
        narrator.say(f"result kept in {kept}")
        if not settings.json_output:
            print_result(results[-1])
    summary = summarise(results) if len(results) > 1 else results[0]
    if settings.json_output:
        print(json.dumps(summary))
    elif len(results) > 1:
        print_summary(summary)
    return ExitCode.OK


def _compare(arguments: list[str]) -> int:
    from fkd_bench.compare.cli import compare

    return compare(arguments)


def _reproduce(arguments: list[str]) -> int:
    from fkd_bench.compare.reproduce import reproduce

    return reproduce(arguments)


def _client_time(arguments: list[str]) -> int:
    from fkd_bench.client_time import client_time

    return client_time(arguments)


def _load(arguments: list[str]) -> int:
    from fkd_bench.load.command import load

    return load(arguments)


def _codecs(arguments: list[str]) -> int:
    from fkd_bench.codec_time import codec_time

    return codec_time(arguments)


def _growth(arguments: list[str]) -> int:
    from fkd_bench.growth import growth

    return growth(arguments)


def _hostile(arguments: list[str]) -> int:
    from fkd_bench.hostile import HostileSettings, outcomes_table, sweep
    from fkd_bench.narrator import Narrator

    settings = load_settings(HostileSettings, "fkd-bench hostile", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    outcomes = sweep(settings, Narrator())
    found = json.dumps([outcome.as_json() for outcome in outcomes])
    (settings.out / "hostile.json").write_text(found)
    print(found if settings.json_output else outcomes_table(outcomes))
    return ExitCode.OK


def _privacy(arguments: list[str]) -> int:
    from fkd_bench.privacy import PrivacySettings

    settings = load_settings(PrivacySettings, "fkd-bench privacy", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    spent = settings.spent()
    print(json.dumps(spent.as_json()) if settings.json_output else spent.sentence())
    return ExitCode.OK


def _embedding(arguments: list[str]) -> int:
    parser = OneSentenceParser(prog="fkd-bench embedding", description=measure_embedding.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="shard folder")
    parser.add_argument("--extractor", required=True, help="resnet18, or a .safetensors file with its JSON")
    parser.add_argument("--images", type=int, default=2048, help="how many images")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    measured = measure_embedding(given)
    if given.json:
        print(json.dumps(measured))
    else:
        print(
            f"embedding {measured['embed']:.0f} images/s, bare forward loop {measured['bare']:.0f} images/s: "
            f"ratio {measured['ratio']:.3f}"
        )
    return ExitCode.OK


def measure_embedding(given: argparse.Namespace) -> dict[str, float]:
    """Throughput of the client's embedding against a bare forward loop at the same batch and dtype."""
    import numpy as np

    from fkd_client.embedding import measure_embedding_throughput
    from fkd_client.extractor import extractor_artifact, load_extractor
    from fkd_client.threads import limit_threads
    from fkd_shards.shard import read_shard

    limit_threads(given.threads)
    extractor = load_extractor(extractor_artifact(given.extractor)).to(given.device)
    images = np.asarray(read_shard(given.data).images[: given.images])
    return measure_embedding_throughput(extractor, images, given.device, batch_size=given.batch)


if __name__ == "__main__":
    sys.exit(main())
