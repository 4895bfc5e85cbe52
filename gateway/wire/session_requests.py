"""The bodies of the requests on sessions and shared prefixes.

Types are strict, and a field that nobody knows is refused by name: unlike a chat request's, these bodies come
from clients of this server alone.
"""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import PydanticCustomError

from gateway.errors import InvalidRequest
from gateway.wire.body import decode_object
from gateway.wire.complaint import to_invalid_request
from gateway.wire.limits import MAX_MESSAGES, MAX_SALT_CHARACTERS
from gateway.wire.messages import Message

__all__ = ["ForkSession", "NewPrefix", "NewSession", "PinSession", "parse_body"]

B = TypeVar("B", bound=BaseModel)

_MAX_PAIRS = 16
_MAX_PIN_SECONDS = 7 * 24 * 3600


def _checked_metadata(metadata: dict[str, str] | None) -> dict[str, str] | None:
    for key, value in (metadata or {}).items():
        if not 0 < len(key) <= 64:
            raise PydanticCustomError("metadata", "has a key without 1 to 64 characters")
        if len(value) > 512:
            raise PydanticCustomError("metadata", "has a value of more than 512 characters")
    if len(metadata or ()) > _MAX_PAIRS:
        raise PydanticCustomError("metadata", "has more than 16 pairs")
    return metadata


def _printable(name: str | None) -> str | None:
    if name is not None and not name.isprintable():
        raise PydanticCustomError("name", "must be of printable characters")
    return name


Metadata = Annotated[dict[str, str] | None, FailFast(), AfterValidator(_checked_metadata)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NewSession(_Body):
    """POST /v1/sessions."""

    model: str | None = None
    metadata: Metadata = None
    messages: Annotated[list[Message] | None, FailFast(), Field(max_length=MAX_MESSAGES)] = None
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] = None


class ForkSession(_Body):
    """POST /v1/sessions/{id}/fork."""

    up_to: Annotated[int | None, Field(ge=0)] = None  # messages; null: all
    metadata: Metadata = None


class PinSession(_Body):
    """POST /v1/sessions/{id}/pin."""

    ttl_seconds: Annotated[float, Field(ge=1, le=_MAX_PIN_SECONDS)]


class NewPrefix(_Body):
    """POST /admin/prefixes."""

    name: Annotated[str | None, Field(min_length=1, max_length=200), AfterValidator(_printable)] = None
    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES)]


def parse_body(body: bytes, kind: type[B]) -> tuple[B, dict[str, Any]]:
    """The body as values, and as it was sent; an empty body is `{}`. Raises InvalidRequest."""
    fields = decode_object(body) if body.strip() else {}
    for name in fields:
        if name not in kind.model_fields:  # here and not by pydantic, which would complain of every one
            raise InvalidRequest(f"{name[:200]} is not known here.", param=name[:200])
    try:
        return kind.model_validate(fields), fields
    except ValidationError as error:
        raise to_invalid_request(error) from None
