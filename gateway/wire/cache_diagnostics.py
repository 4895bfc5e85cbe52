"""What is told of a prompt beside an earlier one: whether the cache served it, and else what differed.

The shapes and their names are the protocol's.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["CacheHit", "CacheMiss", "ChangeReason", "ComparisonNotFound", "Diagnostics", "Unavailable"]

ChangeReason = Literal[
    "model_changed",
    "prompt_cache_key_changed",
    "tools_changed",
    "text_format_changed",
    "reasoning_effort_changed",
    "verbosity_changed",
    "input_changed",
]


class CacheHit(msgspec.Struct, frozen=True, tag_field="type", tag="cache_hit"):
    """All that the earlier request left was found."""


class CacheMiss(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_miss"):
    """The first thing in which the two requests differ."""

    reason: ChangeReason
    cache_missed_tokens: int  # of this prompt, after the place where the two part
    comparison_reusable_tokens: int | UnsetType = UNSET  # before it


class ComparisonNotFound(msgspec.Struct, frozen=True, tag_field="type", tag="comparison_response_not_found"):
    """No request of this tenant with this id is remembered."""


class Unavailable(msgspec.Struct, frozen=True, tag_field="type", tag="unavailable"):
    """Nothing can be said: the two begin alike, and what was kept is gone, or was never kept."""


Diagnostics = CacheHit | CacheMiss | ComparisonNotFound | Unavailable
