"""Settings of a program: flag, then environment (FKD_...), then YAML file, then default; errors in one sentence."""

from __future__ import annotations

import argparse
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from fkd_common.advice import did_you_mean
from fkd_common.errors import UsageError
from fkd_common.program import OneSentenceParser
from fkd_common.yaml_text import yaml_mapping

_Settings = TypeVar("_Settings", bound="ProgramSettings")

_PREFIX = "FKD_"


class ProgramSettings(BaseSettings):
    """Base of every program's settings."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_prefix_target="all",  # aliases too: FKD_JSON, not JSON
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
        use_attribute_docstrings=True,
    )

    config: Path | None = None
    """YAML file with any of these settings as keys (underscores, not dashes)."""
    print_config: bool = False
    """Print the settings in force as YAML and exit."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment above what :func:`load_settings` read from the file; flags are added on top by it."""
        return env_settings, init_settings

    def to_yaml(self) -> str:
        """The settings in force, as a file that ``--config`` takes."""
        values = self.model_dump(mode="json", exclude={"config", "print_config"}, by_alias=True)
        return yaml.safe_dump(values, sort_keys=False)


def load_settings(
    kind: type[_Settings], program: str, argv: list[str], *, use_environment: bool = True
) -> _Settings:
    """Read a program's settings from its arguments, environment (unless told not to) and file.

    Raises:
        UsageError: An unknown key, a wrong value or an unreadable file; one sentence each.
    """
    try:
        parser = _Parser(program, (kind.__doc__ or "").strip())
        cli: CliSettingsSource[Any] = CliSettingsSource(
            kind, cli_prog_name=program, cli_parse_args=argv, root_parser=parser
        )
        given = cli()
        if use_environment:
            _check_environment(kind)
        path = given.get("config") or (os.environ.get("FKD_CONFIG") if use_environment else None)
        values = _read_yaml(kind, Path(path)) if path else {}
        prefix = None if use_environment else "FKD_NOT_READ_"
        # An empty variable is an unset one; an empty flag means what it says: `--correction ""` is none at all.
        return kind(_cli_settings_source=cli, _env_prefix=prefix, _env_ignore_empty=True, **values)
    except ValidationError as error:
        raise UsageError("; ".join(_sentence(problem) for problem in error.errors())) from error
    except SettingsError as error:
        raise UsageError(f"{error} (see {program} --help)") from error


def _check_environment(kind: type[ProgramSettings]) -> None:
    """Notice a variable that is almost a setting; others may be another program's.

    Raises:
        UsageError: There is one.
    """
    known = {f"{_PREFIX}{field.alias or name}".upper() for name, field in kind.model_fields.items()}
    known.add("FKD_SERVER")  # a client's and an operator's, one letter from a coordinator's
    for name in sorted(os.environ):
        given = name.upper()
        if not given.startswith(_PREFIX) or given in known:
            continue
        if meant := did_you_mean(given, known, cutoff=0.88):
            raise UsageError(f"the environment has {name}, which is no setting: {meant}")


def _read_yaml(kind: type[ProgramSettings], path: Path) -> dict[str, Any]:
    try:
        values = yaml_mapping(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"configuration file {path} cannot be read: {error}") from error
    known = {field.alias or name for name, field in kind.model_fields.items()}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        advice = did_you_mean(unknown[0], known, "--print-config lists the known ones")
        raise UsageError(f"configuration file {path}: unknown key {', '.join(unknown)}; {advice}")
    return values


def _sentence(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"--{place.replace('_', '-')} is required"
    if not place:
        return str(message)
    return f"{place} = {problem['input']!r}: {message[0].lower()}{message[1:]}"


class _Parser(OneSentenceParser):
    """A parser whose help is short and shows values as they are typed."""

    def __init__(self, program: str, description: str) -> None:
        super().__init__(
            prog=program,
            usage=f"{program} [--config FILE] [--FLAG VALUE ...]",
            description=description,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=100),
            allow_abbrev=False,
        )
        self.add_argument("--version", action="version", version=f"{program} {version('fkd')}")

    def format_help(self) -> str:
        for action in self._actions:
            if isinstance(action.metavar, str):
                action.metavar = _as_typed(action.metavar)
            action.help = _plain_default(action.help or "")
        return super().format_help()


def _as_typed(metavar: str) -> str:
    """`tuple[int,...]` and `{EXTEND,ABORT}` as a person types them: `int,int,...` and `{extend,abort}`."""
    listed = re.fullmatch(r"tuple\[(.+),\.\.\.\]", metavar)
    return f"{listed[1]},...".lower() if listed else metavar.lower()


def _plain_default(text: str) -> str:
    """A flag's explanation with its default as it would be typed, or without one that says nothing."""
    text = re.sub(r" \(default(: None| factory: \w+)\)$", "", text)
    text = re.sub(r"<[\w.]+: '([^']*)'>", r"\1", text)
    found = re.search(r" \(default: (.*)\)$", text)
    if found is None:
        return text
    value = found[1]
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", value):  # an enumeration's name
        value = value.lower()
    elif re.fullmatch(r"\(.*\)", value):
        value = ",".join(part.strip() for part in value.strip("()").split(",") if part.strip())
    return f"{text[: found.start()]} (default: {value})"
