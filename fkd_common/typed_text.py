"""Lists and mappings as a person types them in a flag or a variable: ``a,b`` and ``a=1,b=x``."""

from __future__ import annotations

import json
from typing import Annotated, TypeVar

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

_T = TypeVar("_T")


def _split_commas(value: object) -> object:
    """Accept ``a,b`` (flags, environment) where a list is expected."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return _split_commas(value[0])
    return value


def _split_assignments(value: object) -> object:
    """Accept ``a=1,b=x`` (flags, environment) where a mapping to scalars is expected."""
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    pairs = [tuple(map(str.strip, part.partition("=")[::2])) for part in parts]
    names = [name for name, _ in pairs]
    if not all(names) or any("=" not in part for part in parts):
        raise ValueError(f"expected NAME=VALUE,NAME=VALUE, got {value!r}")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is there twice in {value!r}")
    return {name: _scalar(text) for name, text in pairs}


def _scalar(text: str) -> object:
    """A number or a truth value where the text is one, as JSON spells it."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


Listed = Annotated[tuple[_T, ...], BeforeValidator(_split_commas), NoDecode]
"""Values of one kind."""
Assigned = Annotated[dict[str, bool | int | float | str], BeforeValidator(_split_assignments), NoDecode]
"""Scalars by name."""
