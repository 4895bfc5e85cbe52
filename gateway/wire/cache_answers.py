"""What is told of the cache: where a prompt came from, where a session lies, how a move went."""

from dataclasses import dataclass
from typing import Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from engine.cache_messages import CacheReport, MissReason, Moved, Residency, TierName, TierUse
from gateway.wire.cache_diagnostics import Diagnostics

__all__ = [
    "NOTHING",
    "CacheExplanation",
    "CacheTold",
    "CacheUse",
    "MoveAnswer",
    "PartedAt",
    "TierAnswer",
    "TierTokens",
    "has_parted",
]


class TierTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens by where they were found."""

    device: int
    host: int
    disk: int

    @classmethod
    def of(cls, counted: CacheReport | Moved) -> Self:
        """The same in the engine's words."""
        return cls(
            device=counted.num_device_tokens, host=counted.num_host_tokens, disk=counted.num_disk_tokens
        )


class PartedAt(msgspec.Struct, frozen=True, kw_only=True):
    """The first token of a prompt that was not found, and the message that it stands in."""

    token: int
    message: int | None  # an index into the messages, a session's history first; null: in none of them


class CacheExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was a hit, or why not. `tokens` and `computed` add up to the prompt."""

    tokens: TierTokens
    computed: int
    copied_blocks: int
    parted_at: PartedAt | None
    reason: MissReason
    hint: str


@dataclass(frozen=True, slots=True)
class CacheTold:
    """What the client of a request for text asked to be told of the cache, with the answer's end."""

    explanation: CacheExplanation | UnsetType = UNSET
    diagnostics: Diagnostics | UnsetType = UNSET


NOTHING = CacheTold()


class TierAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier holds of a session. Bytes are shared when anything else hangs from the same blocks."""

    tokens: int
    blocks: int
    bytes: int
    shared_bytes: int
    private_bytes: int

    @classmethod
    def of(cls, use: TierUse) -> Self:
        """The same in the engine's words."""
        return cls(
            tokens=use.num_tokens,
            blocks=use.num_blocks,
            bytes=use.num_bytes,
            shared_bytes=use.num_shared_bytes,
            private_bytes=use.num_bytes - use.num_shared_bytes,
        )


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prefix lies: `tokens` is its length; a tier that does not exist is left out."""

    tokens: int
    tiers: dict[TierName, TierAnswer]

    @classmethod
    def of(cls, residency: Residency) -> Self:
        """The same in the engine's words."""
        tiers = {name: TierAnswer.of(use) for name, use in residency.tiers.items()}
        return cls(tokens=residency.num_tokens, tiers=tiers)


class MovedParts(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied between tiers."""

    blocks: int
    bytes: int


class MoveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a park or a resume went. `tokens` says where the session could be had from when it began."""

    object: Literal["session.park", "session.resume"]
    id: str
    tokens: TierTokens
    tokens_to_compute: int
    parked_tokens: int
    moved: MovedParts
    milliseconds: float
    message: str | None

    @classmethod
    def of(cls, kind: Literal["session.park", "session.resume"], session_id: str, moved: Moved) -> Self:
        """The same in the engine's words."""
        return cls(
            object=kind,
            id=session_id,
            tokens=TierTokens.of(moved),
            tokens_to_compute=moved.num_to_compute,
            parked_tokens=moved.num_parked_tokens,
            moved=MovedParts(blocks=moved.num_moved_blocks, bytes=moved.num_moved_bytes),
            milliseconds=round(moved.seconds * 1000, 1),
            message=moved.message,
        )


def has_parted(report: CacheReport) -> bool:
    """Whether there is a token that was looked for and not found."""
    return report.reason not in ("none", "bypassed")
