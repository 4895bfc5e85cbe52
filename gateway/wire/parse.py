"""A chat request's body, from bytes to checked values: JSON, fields refused by name, types, ranges."""

from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.wire.body import decode_object
from gateway.wire.chat_request import ChatRequest
from gateway.wire.complaint import to_invalid_request
from gateway.wire.limits import check_limits
from gateway.wire.unserved import HINTS, refuse_unserved

__all__ = ["parse_chat_request"]


def parse_chat_request(body: bytes) -> tuple[ChatRequest, int]:
    """The request, and how many of its fields nobody knows. Raises InvalidRequest."""
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
    return chat, num_unknown
