"""Bodies of requests for text, from bytes to checked values: JSON, fields refused by name, types, ranges."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.errors import InvalidRequest
from gateway.wire.body import decode_object
from gateway.wire.chat_limits import check_chat
from gateway.wire.chat_request import ChatRequest
from gateway.wire.complaint import to_invalid_request
from gateway.wire.completion_limits import check_completion
from gateway.wire.completion_request import CompletionRequest
from gateway.wire.stored import raw_messages
from gateway.wire.tool_limits import check_tools
from gateway.wire.unserved import (
    CHAT_HINTS,
    COMPLETION_HINTS,
    UNSERVED_CHAT,
    UNSERVED_COMPLETIONS,
    refuse_unserved,
)

__all__ = ["ParsedChat", "ParsedCompletion", "parse_chat_request", "parse_completion_request"]

B = TypeVar("B", bound=BaseModel)


class ParsedChat(NamedTuple):
    """A chat request, and what its body says beside."""

    chat: ChatRequest
    num_unknown: int  # fields that nobody knows
    messages: list[dict[str, Any]]  # as they were sent; empty unless they are to be stored


class ParsedCompletion(NamedTuple):
    """A completion request, and what its body says beside."""

    completion: CompletionRequest
    num_unknown: int  # fields that nobody knows


def parse_chat_request(body: bytes) -> ParsedChat:
    """Raises InvalidRequest."""
    fields = decode_object(body)
    _require_model(fields)
    refuse_unserved(fields, UNSERVED_CHAT)
    chat = _typed(fields, ChatRequest)
    check_chat(chat)
    check_tools(chat)
    num_unknown = _num_unknown(fields, ChatRequest, CHAT_HINTS)
    return ParsedChat(chat, num_unknown, [] if chat.session_id is None else raw_messages(fields))


def parse_completion_request(body: bytes) -> ParsedCompletion:
    """Raises InvalidRequest."""
    fields = decode_object(body)
    _require_model(fields)
    if fields.get("prompt") is None:
        raise InvalidRequest("prompt is missing: send a string, or an array of token ids.", param="prompt")
    refuse_unserved(fields, UNSERVED_COMPLETIONS)
    completion = _typed(fields, CompletionRequest)
    check_completion(completion)
    return ParsedCompletion(completion, _num_unknown(fields, CompletionRequest, COMPLETION_HINTS))


def _require_model(fields: Mapping[str, object]) -> None:
    if "model" not in fields:
        raise InvalidRequest("model is missing: name one of those that GET /v1/models lists.", param="model")


def _typed(fields: Mapping[str, object], kind: type[B]) -> B:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise to_invalid_request(error) from None


def _num_unknown(fields: Mapping[str, object], kind: type[BaseModel], hints: frozenset[str]) -> int:
    return sum(name not in kind.model_fields and name not in hints for name in fields)
