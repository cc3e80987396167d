"""`fkd-server status`, `clients`, `rounds`, `ledger`, `events`, `pause`, `resume`, `stop`: an operator's verbs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from rich.console import RenderableType
from rich.live import Live

from fkd_common.errors import ExitCode, UnreachableError
from fkd_common.message_json import as_json
from fkd_common.pb import admin_pb2 as pb
from fkd_server.operator.call import Operator, operator_parser
from fkd_server.operator.tables import (
    clients_table,
    event_line,
    ledger_table,
    plain_console,
    rounds_table,
    show,
    status_view,
)

_Item = TypeVar("_Item", bound=Message)

OVER = {"completed": ExitCode.OK, "aborted": ExitCode.ABORTED}
"""States of a run that has ended, and what watching it ends with."""

PATIENCE_S = 60.0
"""How long `--watch` and `--follow` wait for a coordinator that has gone: it may be about to be started again."""


def status(arguments: list[str]) -> int:
    """Say where a run stands; returns the exit code.

    Raises:
        FkdError: The coordinator does not answer, or does not take orders from this caller.
    """
    parser = _parser("status", "Say where a run stands.")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=2.0,
        metavar="SECONDS",
        help="say it again every so often (default: 2), until the run is over: exit code 0, or 6 if it was aborted",
    )
    given = parser.parse_args(arguments)
    with Operator.of(given) as operator:
        if given.watch is None:
            _print(given, operator.status(), status_view)
            return ExitCode.OK
        if sys.stdout.isatty() and not given.json:
            return _watch_on_screen(operator, given.watch)
        for answer in _again(operator, given.watch):
            _print(given, answer, status_view)
    return OVER[answer.state]


def clients(arguments: list[str]) -> int:
    """List the clients of a run; returns the exit code.

    Raises:
        FkdError: As :func:`status`.
    """
    given = _parser("clients", "List what is known of every client of a run.").parse_args(arguments)
    with Operator.of(given) as operator:
        answer = operator.status()
    return _list(given, answer.clients, clients_table)


def rounds(arguments: list[str]) -> int:
    """List the rounds that are over; returns the exit code.

    Raises:
        FkdError: As :func:`status`.
    """
    parser = _parser("rounds", "List the rounds that are over.")
    parser.add_argument(
        "--first", type=_round, default=0, metavar="ROUND", help="from this one on (default: 0)"
    )
    given = parser.parse_args(arguments)
    with Operator.of(given) as operator:
        found = list(_rounds(operator, given.first))
    return _list(given, found, rounds_table)


def ledger(arguments: list[str]) -> int:
    """List the byte ledger; returns the exit code.

    Raises:
        FkdError: As :func:`status`.
    """
    given = _parser("ledger", "List bytes by client, round and phase.").parse_args(arguments)
    with Operator.of(given) as operator:
        found = list(_ledger(operator))
    return _list(given, found, ledger_table)


def events(arguments: list[str]) -> int:
    """List what happened lately; returns the exit code.

    Raises:
        FkdError: As :func:`status`.
    """
    parser = _parser(
        "events", "List what happened since the coordinator was started; with --json one line each."
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on with what happens, until the run is over"
    )
    given = parser.parse_args(arguments)
    with Operator.of(given) as operator:
        last, state, served_s = 0, "", 0.0
        for answer in _again(operator, 1.0) if given.follow else [operator.status()]:
            if answer.serving_s < served_s:
                last = 0  # another process of the coordinator counts from 1 again
            state, served_s = answer.state, answer.serving_s
            for event in _events(operator, last, insist=not given.follow):
                last = event.number
                print(json.dumps(as_json(event)) if given.json else event_line(event), flush=True)
    return OVER[state] if given.follow else ExitCode.OK


def pause(arguments: list[str]) -> int:
    """Let the open phase end and open no other; returns the exit code.

    Raises:
        FkdError: As :func:`status`.
    """
    given = _parser("pause", "Let the open phase end, and open no other until `resume`.").parse_args(
        arguments
    )
    return _steer(given, "Pause", pb.PauseRequest())


def resume(arguments: list[str]) -> int:
    """Go on with a paused run; returns the exit code.

    Raises:
        FkdError: As :func:`status`.
    """
    given = _parser("resume", "Go on with a paused run.").parse_args(arguments)
    return _steer(given, "Resume", pb.ResumeRequest())


def stop(arguments: list[str]) -> int:
    """End a run without a result; returns the exit code.

    Raises:
        FkdError: As :func:`status`.
    """
    parser = _parser("stop", "End a run for good, without a result; its clients learn it.")
    parser.add_argument("--yes", action="store_true", help="do not ask, as where nobody types")
    given = parser.parse_args(arguments)
    if sys.stdin.isatty() and not given.yes:
        question = (
            f"end the run at {given.server} for good? To stop the coordinator alone, end its process. [y/N] "
        )
        if input(question).strip().lower() not in ("y", "yes"):
            print("nothing has changed")
            return ExitCode.OK
    return _steer(given, "Stop", pb.StopRequest())


def _steer(given: argparse.Namespace, name: str, request: Message) -> int:
    with Operator.of(given) as operator:
        answer = operator.call(name, request)
    before = "the run is over: " if name == "Stop" else ""
    print(json.dumps(as_json(answer)) if given.json else f"{before}{answer.detail}")
    return ExitCode.OK


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    parser = operator_parser(verb, description)
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    return parser


def _round(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 to {2**31 - 1}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: expected 0.1 to 3600 seconds")
    return value


def _print(given: argparse.Namespace, answer: Message, view: Callable[..., RenderableType]) -> None:
    if given.json:
        print(json.dumps(as_json(answer)), flush=True)
    else:
        show(view(answer))


def _list(
    given: argparse.Namespace, found: Sequence[_Item], table: Callable[[Sequence[_Item]], RenderableType]
) -> int:
    if given.json:
        print(json.dumps([as_json(item) for item in found]))
    else:
        show(table(found))
    return ExitCode.OK


def _watch_on_screen(operator: Operator, every_s: float) -> int:
    with Live(console=plain_console(), auto_refresh=False, vertical_overflow="visible") as screen:
        for answer in _again(operator, every_s):
            screen.update(status_view(answer), refresh=True)
    return OVER[answer.state]


def _again(operator: Operator, every_s: float) -> Iterator[pb.StatusResponse]:
    """A run's status again and again, the last one when it is over; over a coordinator's restart."""
    answered: float | None = None
    said = ""
    while True:
        try:
            answer = operator.status()
        except UnreachableError as error:
            if answered is None or time.monotonic() - answered > PATIENCE_S:
                raise
            if str(error) != said:
                print(f"waiting: {error}", file=sys.stderr, flush=True)
            said = str(error)
        else:
            answered = time.monotonic()
            yield answer
            if answer.state in OVER:
                return
        time.sleep(every_s)


def _events(operator: Operator, after: int, *, insist: bool) -> Iterator[pb.EventStatus]:
    """Events after that one; unless told to insist, a coordinator that has gone meanwhile is asked again later."""
    try:
        while found := operator.call("Events", pb.EventsRequest(after=after)).events:
            yield from found
            after = found[-1].number
    except UnreachableError:
        if insist:
            raise


def _rounds(operator: Operator, first: int) -> Iterator[pb.RoundStatus]:
    while found := operator.call("Rounds", pb.RoundsRequest(first=first)).rounds:
        yield from found
        first = found[-1].round + 1


def _ledger(operator: Operator) -> Iterator[pb.LedgerRow]:
    offset = 0
    while found := operator.call("Ledger", pb.LedgerRequest(offset=offset)).rows:
        yield from found
        offset += len(found)
