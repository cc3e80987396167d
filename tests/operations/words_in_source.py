"""Collects, from the source, every reason an error can have and every event a program can log; runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVER, CLIENT, COMMON, RELAY = (
    ROOT / name for name in ("fkd_server", "fkd_client", "fkd_common", "fkd_relay")
)
_SAYING = {"debug", "info", "warning", "error", "exception", "critical", "_say", "Event", "LibraryLog"}
"""What is called to log an event, to make one, or to have a library's words logged as one."""


def reasons() -> set[str]:
    """Values of `reason=` in calls, and of `reason` in the classes of errors."""
    found = set()
    constants = _constants()
    for tree in _trees(SERVER, CLIENT, COMMON, RELAY):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg == "reason":
                        found |= _texts(keyword.value, constants)
            if isinstance(node, ast.ClassDef):
                for line in node.body:
                    if isinstance(line, ast.Assign) and [ast.unparse(t) for t in line.targets] == ["reason"]:
                        found |= _texts(line.value, constants)
    return {reason for reason in found if reason.isupper()}


def events(*packages: Path) -> set[str]:
    """Names of the events that are logged or made anywhere in these packages."""
    found = set()
    constants = _constants()
    for tree in _trees(*packages):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
                if called in _SAYING:
                    found |= _texts(node.args[0], constants)
    return found


def _texts(node: ast.expr, constants: dict[str, str]) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _texts(node.body, constants) | _texts(node.orelse, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return {constants[node.id]}
    return set()


def _constants() -> dict[str, str]:
    """Module-level names for texts, such as PREPARING."""
    found = {}
    for tree in _trees(SERVER, CLIENT, COMMON, RELAY):
        for line in tree.body:
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                for target in line.targets:
                    if isinstance(target, ast.Name) and isinstance(line.value.value, str):
                        found[target.id] = line.value.value
    return found


def _trees(*packages: Path) -> Iterator[ast.Module]:
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            if "pb" not in path.parts:
                yield ast.parse(path.read_text())
