"""`fkd-server`: from the command line to what it asks for; the exit code says how it went."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module

from fkd_common.errors import ExitCode, UsageError
from fkd_common.logs import configure_logs
from fkd_common.program import run_program
from fkd_common.settings import load_settings
from fkd_server.settings import ServerSettings

VERBS = {
    "prepare": "fkd_server.prepare:main",
    "doctor": "fkd_server.doctor:main",
    "certs": "fkd_server.access.cli:certs",
    "token": "fkd_server.access.cli:token",
    "status": "fkd_server.operator_cli:status",
    "stop": "fkd_server.operator_cli:stop",
}
"""Other commands than serving, and what carries them out; imported when asked for."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("fkd-server", "client", lambda: _main(arguments))


def _main(arguments: list[str]) -> int:
    if arguments and arguments[0] in VERBS:
        module, _, name = VERBS[arguments[0]].partition(":")
        return int(getattr(import_module(module), name)(arguments[1:]))
    if arguments and not arguments[0].startswith("-"):
        raise UsageError(_unknown(arguments[0]))
    settings = load_settings(ServerSettings, "fkd-server", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    from fkd_server.serve import serve

    configure_logs(settings.log_format)
    return serve(settings)


def _unknown(word: str) -> str:
    meant = get_close_matches(word, VERBS, n=1)
    advice = f"did you mean {meant[0]}?" if meant else f"expected {', '.join(VERBS)}, or flags to serve with"
    return f"unknown command {word}: {advice}"


if __name__ == "__main__":
    sys.exit(main())
