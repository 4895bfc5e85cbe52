"""The protocol's fields for the prompt cache: options of a request, and breakpoints on parts of messages.

`prewarm` and `comparison_response_id` are the protocol's for responses; here chat and completions have them
too. Unknown members are refused by name, since a misspelt one would be missed.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

__all__ = [
    "LIFETIMES",
    "Breakpoint",
    "PromptCacheBreakpoint",
    "PromptCacheOptions",
    "Retention",
    "Ttl",
    "breakpoints_in",
]

Ttl = Literal["30m", "12h"]
Retention = Literal["in_memory", "24h"]

LIFETIMES: Mapping[Ttl, float] = {"30m": 30 * 60.0, "12h": 12 * 3600.0}  # seconds


class PromptCacheOptions(BaseModel):
    """How a request uses the cache. None of it changes an answer, but that a prewarming one has none."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Ttl | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class PromptCacheBreakpoint(BaseModel):
    """The field on a part of a message's content, as it is described; it is read by `breakpoints_in`."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["explicit"]
    ttl: Ttl | None = None


class Breakpoint(NamedTuple):
    """The end of a reusable beginning, in characters of its message's joined content."""

    offset: int
    ttl: Ttl | None  # None: the request's


def breakpoints_in(content: object) -> tuple[Breakpoint, ...]:
    """Those of a message's content, once its parts have been checked. Raises PydanticCustomError."""
    if not isinstance(content, list):
        return ()
    found: list[Breakpoint] = []
    offset = 0
    for place, part in enumerate(content):
        offset += len(part[part["type"]])
        marked = part.get("prompt_cache_breakpoint")
        if marked is not None:
            found.append(Breakpoint(offset, _checked(marked, f"content.{place}.prompt_cache_breakpoint")))
    return tuple(found)


def _checked(marked: Any, path: str) -> Ttl | None:
    if not isinstance(marked, dict):
        raise PydanticCustomError("breakpoint", "must be an object", {"path": path})
    for name in marked:
        if name not in ("mode", "ttl"):
            raise PydanticCustomError("breakpoint", "is not known here", {"path": f"{path}.{name[:40]}"})
    if marked.get("mode") != "explicit":
        raise PydanticCustomError("breakpoint", "must be 'explicit'", {"path": f"{path}.mode"})
    ttl = marked.get("ttl")
    if ttl is None:
        return None
    for known in LIFETIMES:
        if ttl == known:
            return known
    raise PydanticCustomError("breakpoint", "must be one of '30m' or '12h'", {"path": f"{path}.ttl"})
