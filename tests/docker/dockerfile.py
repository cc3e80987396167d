"""Reads a Dockerfile into stages, and lays out what COPY brings; runs nothing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser
from pathspec import PathSpec

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"


@dataclass
class Stage:
    """One FROM and what follows it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instruction and value, in order."""

    def all(self, instruction: str) -> list[str]:
        """The values of every such instruction."""
        return [value for name, value in self.steps if name == instruction]

    def only(self, instruction: str) -> str:
        """The value of an instruction that stands there once."""
        (value,) = self.all(instruction)
        return value

    def listed(self, instruction: str) -> list[str]:
        """The words of an instruction in its exec form."""
        return [str(word) for word in json.loads(self.only(instruction))]

    def pairs(self, instruction: str) -> dict[str, str]:
        """NAME=VALUE of every such instruction."""
        words = [word for value in self.all(instruction) for word in shlex.split(value)]
        return dict(word.split("=", 1) for word in words)


def stages_of(name: str) -> dict[str, Stage]:
    """The stages of a Dockerfile of the project by name; the last one, if it has none, is called final."""
    found: list[Stage] = []
    for step in DockerfileParser(str(FOLDER / name)).structure:
        if step["instruction"] == "FROM":
            matched = re.fullmatch(r"(\S+)(?: AS (\S+))?", step["value"])
            assert matched is not None, step["value"]
            found.append(Stage(matched[2] or "final", matched[1]))
        elif step["instruction"] != "COMMENT":
            found[-1].steps.append((step["instruction"], step["value"]))
    return {stage.name: stage for stage in found}


def with_bases(stages: Mapping[str, Stage], name: str) -> list[tuple[str, str]]:
    """All steps that make a stage, those of the stages it builds on first."""
    stage = stages[name]
    return [*(with_bases(stages, stage.base) if stage.base in stages else []), *stage.steps]


def ignored() -> PathSpec:
    """What .dockerignore keeps out of the build context."""
    return PathSpec.from_lines("gitignore", (ROOT / ".dockerignore").read_text().splitlines())


def context_files() -> list[str]:
    """The files of the build context; hidden folders at the top are out, which a test holds against the patterns."""
    spec = ignored()
    tops = [top for top in ROOT.iterdir() if not top.name.startswith(".")]
    files = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top]) if path.is_file()]
    names = (str(path.relative_to(ROOT)) for path in files)
    return sorted(name for name in names if not spec.match_file(name))


def copy_context(to: Path) -> None:
    """What `COPY . .` copies."""
    for name in context_files():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
