"""What is told of sessions and shared prefixes. Times are seconds since 1970."""

from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from gateway.store.keyset import seconds_since_1970
from gateway.store.prefixes import SharedPrefix
from gateway.store.sessions import Session, StoredMessage
from gateway.wire.cache_answers import CacheUse
from gateway.wire.stored import without_briefing

__all__ = ["Deleted", "MessageAnswer", "PinAnswer", "PrefixAnswer", "SessionAnswer", "message_id"]


class SessionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `cache` is told of one session alone; null while there is no engine to ask."""

    id: str
    object: Literal["session"] = "session"
    created_at: int
    updated_at: int
    model: str
    parent_id: str | None
    metadata: dict[str, str]
    num_turns: int
    num_messages: int
    cache: CacheUse | UnsetType | None = UNSET

    @classmethod
    def of(cls, session: Session, cache: CacheUse | UnsetType | None = UNSET) -> Self:
        """The row as it is told; tenant and namespace are not."""
        return cls(
            id=session.id,
            created_at=seconds_since_1970(session.created_at),
            updated_at=seconds_since_1970(session.updated_at),
            model=session.model,
            parent_id=session.parent_id,
            metadata=session.metadata,
            num_turns=session.num_turns,
            num_messages=session.num_messages,
            cache=cache,
        )


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a session, inside it as the client sent it or as the model answered."""

    id: str
    object: Literal["session.message"] = "session.message"
    created_at: int
    position: int
    message: dict[str, Any]

    @classmethod
    def of(cls, session_id: str, stored: StoredMessage) -> Self:
        """The row as it is told."""
        return cls(
            id=message_id(session_id, stored.position),
            created_at=seconds_since_1970(stored.created_at),
            position=stored.position,
            message=without_briefing(stored.message),
        )


class PinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a pin keeps on the device."""

    object: Literal["session.pin"] = "session.pin"
    id: str
    pinned_tokens: int
    pinned_blocks: int
    expires_at: int


class PrefixAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A shared prefix; `cache` is null while there is no engine to ask."""

    id: str
    object: Literal["shared_prefix"] = "shared_prefix"
    created_at: int
    name: str | None
    messages: list[dict[str, Any]]
    cache: CacheUse | None

    @classmethod
    def of(cls, prefix: SharedPrefix, cache: CacheUse | None) -> Self:
        """The row as it is told."""
        return cls(
            id=prefix.id,
            created_at=seconds_since_1970(prefix.created_at),
            name=prefix.name,
            messages=list(prefix.messages),
            cache=cache,
        )


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is no more."""

    id: str
    object: Literal["session.deleted", "session.pin.deleted", "shared_prefix.deleted"]
    deleted: bool = True


def message_id(session_id: str, position: int) -> str:
    """How a message is named in pages."""
    return f"{session_id}-{position}"
