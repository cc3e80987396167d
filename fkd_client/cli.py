"""`fkd-client`: parses settings, takes part in one run, stops cleanly; the exit code says how it went."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fkd_client.settings import ClientSettings
from fkd_client.threads import limit_threads
from fkd_common.errors import (
    ExitCode,
    FkdError,
    InvalidUploadError,
    UnreachableError,
    UsageError,
)
from fkd_common.identifiers import check_client_name
from fkd_common.logs import configure_logs
from fkd_common.program import run_program
from fkd_common.service_manager import ServiceManager
from fkd_common.settings import load_settings
from fkd_common.tracing import start_tracing, stop_tracing
from fkd_common.verbs import carry_out

if TYPE_CHECKING:
    from fkd_client.tls import ClientTls


VERBS = {
    "predict": "fkd_client.predict:main",
    "check": "fkd_client.check:main",
    "completion": "fkd_client.cli:complete",
}
"""Other commands than taking part in a run, and what carries them out."""


class _StoppedError(BaseException):
    """SIGTERM or Ctrl-C: leave the run and go; not an Exception, so that nothing swallows it on the way."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("fkd-client", "client", lambda: _main(arguments))


def complete(arguments: list[str]) -> int:
    """`fkd-client completion SHELL`; returns the exit code."""
    from fkd_common.completion import completion

    return completion("fkd-client", _main, VERBS, arguments)


def _main(arguments: list[str]) -> int:
    code = carry_out(VERBS, arguments, "take part in a run with")
    if code is not None:
        return code
    settings = load_settings(ClientSettings, "fkd-client", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    return _run(settings)


def _run(settings: ClientSettings) -> int:
    configure_logs(settings.log_format)
    manager = ServiceManager.from_environment()
    # Before anything that waits: number one of a container is not ended by a signal it does not handle.
    for signal_name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_name, _stop)
    try:
        return _take_part(settings, manager)
    except _StoppedError:
        manager.stopping()
        print("fkd-client: stopped on request; a run at work goes on without this client", file=sys.stderr)
        return ExitCode.OK


def _take_part(settings: ClientSettings, manager: ServiceManager) -> int:
    from fkd_client.transport import GrpcTransport

    if settings.join is not None:
        manager.status("joining")
    tls = credentials_for(settings)
    name = tls.name if tls else _name(settings)
    threads = settings.threads or os.cpu_count() or 1
    limit_threads(threads)
    from fkd_client.client import Client, ClientOptions
    from fkd_client.display import display_for
    from fkd_client.report import print_report
    from fkd_client.teacher_cache import TeacherCache

    options = ClientOptions(
        data=settings.data,
        name=name,
        device=choose_device(settings.device),
        threads=threads,
        test=settings.test,
        max_bad=settings.max_bad,
        patience_s=settings.patience_s,
        runs=settings.runs,
        cache=settings.cache / "embeddings",
        teach=TeacherCache(settings.cache / "teachers"),
        artifacts=settings.artifacts or settings.cache / "artifacts",
    )
    start_tracing("fkd-client")
    client = Client(options, GrpcTransport(settings.server, tls), display_for(name, manager))
    try:
        report = client.run()
    except UnreachableError as error:
        raise unanswered(error, settings) from error
    except FkdError as error:
        client.close(error.reason)
        raise
    finally:
        client.close()
        stop_tracing()
    print_report(report, client.session.ledger)
    return ExitCode.OK


def unanswered(error: UnreachableError, settings: ClientSettings) -> UnreachableError:
    """What to tell a person whose patience ran out: where nobody answered, or what a coordinator in trouble said."""
    if error.reason != UnreachableError.reason:
        return error
    return UnreachableError(
        f"no coordinator answered at {settings.server} within {settings.patience_s:.0f} s "
        "(is fkd-server running there, is the tunnel up? see --server and --patience-s)"
    )


def credentials_for(settings: ClientSettings) -> ClientTls | None:
    """What proves who this client is, fetched with --join if need be; None over plain text.

    Raises:
        UsageError: Flags that contradict each other or the certificate, or plain text beyond this machine.
        FkdError: The coordinator does not accept the token, or does not answer.
    """
    from fkd_client.join import join
    from fkd_client.tls import ClientTls
    from fkd_client.transport import check_plain_text

    if settings.tls is None:
        if settings.join is not None:
            raise UsageError("--join needs --tls FOLDER, where the certificate is to be kept")
        check_plain_text(settings.server, settings.insecure)
        return None
    if settings.insecure:
        raise UsageError("--insecure is for plain text, --tls is not: give one of them")
    if settings.join is not None:
        token = settings.join.get_secret_value()
        join(token, settings.tls, settings.server, settings.join_port, settings.patience_s)
    tls = ClientTls(settings.tls)
    if settings.name not in (None, tls.name):
        raise UsageError(
            f"--name {settings.name}: the certificate in {settings.tls} is {tls.name}'s, and that is the id in the "
            "run; leave out --name"
        )
    return tls


def _name(settings: ClientSettings) -> str:
    """The client's id: as given, else the name of its data."""
    name = settings.name or Path(settings.data.rstrip("/")).name.removesuffix(".npz")
    try:
        return check_client_name(name)
    except InvalidUploadError as error:
        raise UsageError(f"{error}; give one with --name") from error


def choose_device(asked: str) -> str:
    """The device to use.

    Raises:
        UsageError: A GPU was asked for and there is none.
    """
    import torch

    if asked == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise UsageError(f"--device {asked!r}: expected auto, cpu or a device such as cuda:0") from error
    if device.type == "cuda" and not (
        torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    ):
        raise UsageError(
            f"--device {asked}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu or auto"
        )
    return str(device)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # asked twice: at once
    raise _StoppedError


if __name__ == "__main__":
    sys.exit(main())
