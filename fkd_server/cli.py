"""`fkd-server`: from the command line to what it asks for; the exit code says how it went."""

from __future__ import annotations

import sys

from fkd_common.errors import ExitCode
from fkd_common.logs import configure_logs
from fkd_common.program import run_program
from fkd_common.settings import load_settings
from fkd_common.verbs import carry_out
from fkd_server.settings import ServerSettings

VERBS = {
    "prepare": "fkd_server.prepare:main",
    "doctor": "fkd_server.doctor:main",
    "export": "fkd_server.operator.export:main",
    "certs": "fkd_server.access.cli:certs",
    "token": "fkd_server.access.cli:token",
    "status": "fkd_server.operator.cli:status",
    "clients": "fkd_server.operator.cli:clients",
    "rounds": "fkd_server.operator.cli:rounds",
    "ledger": "fkd_server.operator.cli:ledger",
    "events": "fkd_server.operator.cli:events",
    "pause": "fkd_server.operator.cli:pause",
    "resume": "fkd_server.operator.cli:resume",
    "stop": "fkd_server.operator.cli:stop",
    "completion": "fkd_server.cli:complete",
}
"""Other commands than serving, and what carries them out."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("fkd-server", "client", lambda: _main(arguments))


def complete(arguments: list[str]) -> int:
    """`fkd-server completion SHELL`; returns the exit code."""
    from fkd_common.completion import completion

    return completion("fkd-server", _main, VERBS, arguments)


def _main(arguments: list[str]) -> int:
    code = carry_out(VERBS, arguments, "serve with")
    if code is not None:
        return code
    settings = load_settings(ServerSettings, "fkd-server", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    from fkd_server.serve import serve

    configure_logs(settings.log_format)
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
