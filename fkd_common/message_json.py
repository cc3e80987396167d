"""Protobuf messages as plain JSON values, for programs; nothing is read back.

The canonical mapping writes 64-bit integers as strings, so that JavaScript's numbers do not round them. Ours are
bytes and counts, which stay below 2^53: here they are numbers.
"""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.message import Message


def as_json(message: Message) -> dict[str, Any]:
    """Every field under its name in the .proto: an absent optional one is None, an empty list or map is there.

    Args:
        message: Fields of any kind but `bytes`.
    """
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {
            key: as_json(item) if isinstance(item, Message) else item for key, item in sorted(value.items())
        }
    if field.is_repeated:
        return [as_json(item) if field.message_type else item for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such numbers
    return as_json(value) if field.message_type else value
