"""A chat request's body, from bytes to checked values: JSON, fields refused by name, types, ranges."""

from typing import Any, NamedTuple

from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.wire.body import decode_object
from gateway.wire.chat_request import ChatRequest
from gateway.wire.complaint import to_invalid_request
from gateway.wire.limits import check_limits
from gateway.wire.stored import raw_messages
from gateway.wire.unserved import HINTS, refuse_unserved

__all__ = ["ParsedChat", "parse_chat_request"]


class ParsedChat(NamedTuple):
    """A chat request, and what its body says beside."""

    chat: ChatRequest
    num_unknown: int  # fields that nobody knows
    messages: list[dict[str, Any]]  # as they were sent; empty unless they are to be stored


def parse_chat_request(body: bytes) -> ParsedChat:
    """Raises InvalidRequest."""
    fields = decode_object(body)
    if "model" not in fields:
        raise InvalidRequest("model is missing: name one of those that GET /v1/models lists.", param="model")
    refuse_unserved(fields)
    try:
        chat = ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise to_invalid_request(error) from None
    check_limits(chat)
    num_unknown = sum(name not in ChatRequest.model_fields and name not in HINTS for name in fields)
    return ParsedChat(chat, num_unknown, [] if chat.session_id is None else raw_messages(fields))
