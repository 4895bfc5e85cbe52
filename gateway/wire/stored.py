"""Messages on their way into the database and back.

They are kept as the client sent them, fields that nobody reads included, as JSON text. What nests deeper than
any message needs is refused, so that writing and reading it never fails.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.wire.messages import Message

__all__ = ["as_json", "messages_of", "raw_messages"]

_MAX_DEPTH = 32


def raw_messages(fields: Mapping[str, object], *, path: str = "messages") -> list[dict[str, Any]]:
    """The messages of a body whose types have been checked, as they were sent. Raises InvalidRequest."""
    messages = fields.get(path) or []
    assert isinstance(messages, list), "the types have been checked"
    for place, message in enumerate(messages):
        if any(depth > _MAX_DEPTH for depth in _depths(message)):
            raise InvalidRequest(
                f"{path}.{place} nests deeper than {_MAX_DEPTH} levels and cannot be stored; flatten it.",
                param=f"{path}.{place}",
            )
    return messages


def as_json(value: object) -> str:
    """JSON text of ASCII characters, whatever strings there are."""
    return json.dumps(value, separators=(",", ":"))


def messages_of(stored: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Stored messages as a chat request has them."""
    return [Message.model_validate(message) for message in stored]


def _depths(value: object) -> Iterator[int]:
    """How deep each part lies; walks without recursion and no deeper than needed."""
    level: list[object] = [value]
    depth = 0
    while level and depth <= _MAX_DEPTH:
        depth += 1
        yield depth
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
