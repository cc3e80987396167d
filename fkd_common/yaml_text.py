"""YAML as people write settings in it: one small mapping of plain values, without aliases and tags; reads no file."""

from __future__ import annotations

from typing import Any

import yaml

_MOST_LETTERS = 1_000_000
_DEEPEST = 20


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is there twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        if twice := sorted({str(key) for key in keys if keys.count(key) > 1}):
            raise ValueError(f"{', '.join(twice)} is there twice (line {node.start_mark.line + 1})")
        return super().construct_mapping(node, deep)


def yaml_mapping(text: str) -> dict[str, Any]:
    """The mapping that a file of settings is; one without a key where it is empty.

    Args:
        text: YAML.

    Raises:
        ValueError: It is anything else, too large, too deep, or has a tag or an alias (of which a few lines can fill
            all memory); one sentence.
    """
    if len(text) > _MOST_LETTERS:
        raise ValueError(
            f"{len(text):,} letters are too many for a file of settings: at most {_MOST_LETTERS:,}"
        )
    try:
        _check_plain(text)
        values = yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"expected `key: value` lines, got a {type(values).__name__}")
    return values


def _check_plain(text: str) -> None:
    """See, before anything is built, that nothing can grow out of it."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"an alias (*{event.anchor}) is not taken here: write out what it stands for")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            raise ValueError(f"a tag ({event.tag}) is not taken here: write the value alone")
        if isinstance(event, yaml.ScalarEvent) and any(
            "\ud800" <= letter <= "\udfff" for letter in event.value
        ):
            raise ValueError(f"half a character in {event.value!r}, which no file can hold")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} levels, one within another")
