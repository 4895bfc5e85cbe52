"""Messages on their way into the database and back.

Of what the client sent the fields that a message has are kept, as JSON text. What nests deeper than any
message needs is refused, so that writing and reading it never fails.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.errors import InvalidRequest
from gateway.wire.messages import Message

__all__ = ["as_json", "briefing_in", "messages_of", "raw_messages", "with_briefing", "without_briefing"]

_BRIEFING = "briefing"  # beside the fields of an answer: what its prompt was rendered with
_MAX_DEPTH = 32


def raw_messages(fields: Mapping[str, object], *, path: str = "messages") -> list[dict[str, Any]]:
    """The messages of a body whose types have been checked, without what nobody reads.

    Raises InvalidRequest.
    """
    sent = fields.get(path) or []
    assert isinstance(sent, list), "the types have been checked"
    messages = [_known_fields(message) for message in sent]
    for place, message in enumerate(messages):
        if any(depth > _MAX_DEPTH for depth in _depths(message)):
            raise InvalidRequest(
                f"{path}.{place} nests deeper than {_MAX_DEPTH} levels and cannot be stored; flatten it.",
                param=f"{path}.{place}",
            )
    return messages


def _known_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in message.items() if name in Message.model_fields}
    if isinstance(parts := known.get("content"), list):
        known["content"] = [
            {name: value for name, value in part.items() if name in ("type", part["type"])} for part in parts
        ]
    return known


def as_json(value: object) -> str:
    """JSON text of ASCII characters, whatever strings there are."""
    return json.dumps(value, separators=(",", ":"))


def messages_of(stored: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Stored messages as a chat request has them."""
    return [Message.model_validate(message) for message in stored]


def with_briefing(answer: Mapping[str, Any], briefing: Briefing) -> dict[str, Any]:
    """An answer as it is stored."""
    told = {"tools": list(briefing.tools), "words": dict(briefing.words)}
    return {**answer, **({_BRIEFING: told} if briefing else {})}


def briefing_in(stored: Mapping[str, Any]) -> Briefing:
    """What a stored answer's prompt was rendered with; nothing for other messages."""
    told = stored.get(_BRIEFING)
    return NOTHING if told is None else Briefing(told["tools"], told["words"])


def without_briefing(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored message as a client is told of it."""
    return {name: value for name, value in stored.items() if name != _BRIEFING}


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
