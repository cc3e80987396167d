"""`fkd-client check`: whether this site's data, and a coordinator if one is named, would do; takes part in nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fkd_client.cli import credentials_for
from fkd_client.settings import ClientSettings
from fkd_client.tls import ClientTls
from fkd_client.transport import GrpcTransport
from fkd_common.errors import DataError, ExitCode, FkdError, RefusedError, UnreachableError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.printable import printable
from fkd_common.rpc import METHODS, PREPARING
from fkd_common.settings import load_settings
from fkd_shards.bad_images import refuse_if_too_many
from fkd_shards.survey import Survey, survey

_TIMEOUT_S = 10.0
_MAX_CLASSES, _MAX_BAD = 20, 10
"""Shown to a person, who has one screen; `--json` has all."""


class CheckSettings(ClientSettings):
    """Read a site's data as a run would, and ask a coordinator, if one is named, whether it takes its credentials.

    Whatever `fkd-client` is started with may be given; what does not concern data and connection is not used.
    """

    server: str | None = None  # type: ignore[assignment]  # here it may be left out
    """The coordinator, HOST:PORT, to ask whether it takes this site's credentials (default: none is asked)."""
    json_output: bool = Field(False, alias="json")
    """Print one JSON object."""


@dataclass(frozen=True)
class Answer:
    """What a coordinator said."""

    address: str
    client: str | None
    """Whom the certificate names; None over plain text."""
    answers: bool
    accepted: bool | None
    """Whether it takes the credentials; None while it cannot tell."""
    detail: str


def main(arguments: list[str]) -> int:
    """Check; returns the exit code.

    Raises:
        DataError: The data cannot be used.
        UnreachableError: The coordinator does not answer.
        FkdError: It does not take this site's credentials, or a setting is wrong.
    """
    settings = load_settings(CheckSettings, "fkd-client check", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    # A token is used up by joining: this site's certificate is there already, or cannot be checked.
    tls = credentials_for(settings.model_copy(update={"join": None})) if settings.server else None
    found = survey(settings.data)
    answer: Answer | None = None
    problem: FkdError | None = None
    try:
        refuse_if_too_many(found.bad, found.total, settings.max_bad, str(found.path))
    except DataError as error:
        problem = error
    if settings.server:
        answer, refusal = _ask(settings.server, tls)
        problem = problem or refusal
    if settings.json_output:
        data = {**asdict(found), "path": str(found.path), "usable": found.usable, "total": found.total}
        print(json.dumps({"data": data, "server": asdict(answer) if answer else None}))
    else:
        _show(found, answer)
    if problem is not None:
        raise problem
    return ExitCode.OK


def _ask(address: str, tls: ClientTls | None) -> tuple[Answer, FkdError | None]:
    """Make a call that needs a session without having one: who may not call at all is told so first."""
    name = tls.name if tls else None
    transport = GrpcTransport(address, tls)
    try:
        transport.call(METHODS["NextTask"], pb.NextTaskRequest().SerializeToString(), _TIMEOUT_S)
    except FkdError as error:
        return _understood(error, address, name)
    finally:
        transport.close()
    raise RefusedError(f"what answers at {address} gives tasks to anybody: it is no fkd coordinator")


def _understood(error: FkdError, address: str, name: str | None) -> tuple[Answer, FkdError | None]:
    """What the coordinator means, and the error that it is for a person, if it is one."""
    if isinstance(error, RefusedError) and error.reason == "OTHER_RUN":
        detail = (
            "answers, and takes this certificate" if name else "answers; over plain text it takes anybody"
        )
        return Answer(address, name, True, True, detail), None
    if error.reason == PREPARING:
        detail = f"answers, but does not serve yet: {error}"
        return Answer(address, name, True, None, detail), None
    if isinstance(error, UnreachableError) and error.reason == UnreachableError.reason:
        error = UnreachableError(
            f"no coordinator answers at {address} (is fkd-server running there, is the tunnel up?)"
        )
        return Answer(address, name, False, None, str(error)), error
    return Answer(address, name, True, False, str(error)), error


def _show(found: Survey, answer: Answer | None) -> None:
    console = Console(highlight=False)
    table = Table("class", "images")
    table.columns[1].justify = "right"
    rows = list(zip(found.classes, found.counts, strict=True))
    for name, count in rows[:_MAX_CLASSES]:
        table.add_row(Text(printable(name)), Text(f"{count:,}"))
    if len(rows) > _MAX_CLASSES:
        rest = [count for _, count in rows[_MAX_CLASSES:]]
        table.add_row(
            Text(f"and {len(rest)} more, each {min(rest):,} to {max(rest):,}"), Text(f"{sum(rest):,}")
        )
    console.print(table)
    sizes = " to ".join(dict.fromkeys("×".join(map(str, size)) for size in (found.smallest, found.largest)))
    lines = [f"{found.path}: {found.usable:,} of {found.total:,} images can be used, {sizes} pixels"]
    lines += [f"left out: {bad}" for bad in found.bad[:_MAX_BAD]]
    if len(found.bad) > _MAX_BAD:
        lines.append(f"left out: {len(found.bad) - _MAX_BAD} more (all of them with --json)")
    if answer is not None:
        as_whom = f" as {answer.client}" if answer.client else ""
        lines.append(f"coordinator {answer.address}{as_whom}: {answer.detail}")
    for line in lines:
        console.print(Text(printable(line)), soft_wrap=True)
