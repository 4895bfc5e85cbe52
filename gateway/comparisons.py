"""Prompts of the last requests, so that a later one can be told in what it differs.

It owns a bounded memory for each tenant; nobody finds another's. It holds ids and digests, no text.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from gateway.rendering import num_common
from gateway.wire.cache_diagnostics import (
    CacheHit,
    CacheMiss,
    ChangeReason,
    ComparisonNotFound,
    Diagnostics,
    Unavailable,
)
from gateway.wire.text_request import TextRequest

__all__ = ["Comparisons", "Past", "compare"]

_MAX_BYTES = 4 << 20  # of a tenant
_OVERHEAD = 1024  # bytes that one costs beside its ids

# Fields of requests by the change that they make; in the order in which changes are looked for.
_ASPECTS: Mapping[ChangeReason, set[str]] = {
    "prompt_cache_key_changed": {"prompt_cache_key", "cache_salt"},
    "tools_changed": {"tools", "tool_choice", "parallel_tool_calls"},
    "text_format_changed": {"response_format", "regex", "choice", "grammar", "structured_outputs"},
    "reasoning_effort_changed": {"reasoning_effort", "chat_template_kwargs"},
    "verbosity_changed": {"verbosity"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A request's prompt (packed int32 ids), and what else it may differ in."""

    prompt: bytes
    num_kept: int  # tokens of the prompt that it left in the cache
    aspects: Mapping[ChangeReason, bytes]

    @classmethod
    def of(cls, request: TextRequest, prompt: bytes, num_kept: int, model: str) -> "Past":
        """Of a request on its way."""
        aspects: dict[ChangeReason, bytes] = {"model_changed": model.encode()}
        for reason, names in _ASPECTS.items():
            told = request.model_dump_json(include=names, exclude_none=True)
            aspects[reason] = blake2b(told.encode(), digest_size=8).digest()
        return cls(prompt=prompt, num_kept=num_kept, aspects=aspects)


class Comparisons:
    """The memory, of the least recently used kind."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, OrderedDict[str, Past]] = {}
        self._num_bytes: dict[str, int] = {}

    def add(self, tenant: str, completion_id: str, past: Past) -> None:
        """Remember a request."""
        known = self._by_tenant.setdefault(tenant, OrderedDict())
        known[completion_id] = past
        num_bytes = self._num_bytes.get(tenant, 0) + _cost(past)
        while num_bytes > _MAX_BYTES:
            num_bytes -= _cost(known.popitem(last=False)[1])
        self._num_bytes[tenant] = num_bytes

    def find(self, tenant: str, completion_id: str) -> Past | None:
        """A request of this tenant's; None if it is not remembered."""
        known = self._by_tenant.setdefault(tenant, OrderedDict())
        if completion_id in known:
            known.move_to_end(completion_id)
        return known.get(completion_id)


def compare(past: Past | None, now: Past, num_cached: int) -> Diagnostics:
    """What became of an earlier request's prompt in a later one, of which `num_cached` tokens were found."""
    if past is None:
        return ComparisonNotFound()
    ids, before = _ids(now.prompt), _ids(past.prompt)
    num_reusable = min(num_common(before, ids), past.num_kept)
    num_wanted = min(past.num_kept, len(ids) - 1)  # the last token is always computed
    if num_cached >= num_wanted > 0:
        return CacheHit()
    changed = next((each for each in now.aspects if now.aspects[each] != past.aspects[each]), None)
    if num_reusable < num_wanted:
        return CacheMiss(
            reason=changed or "input_changed",
            cache_missed_tokens=len(ids) - num_reusable,
            comparison_reusable_tokens=num_reusable,
        )
    if changed is None or num_wanted <= 0:
        return Unavailable()
    return CacheMiss(
        reason=changed,
        cache_missed_tokens=len(ids) - num_cached,
        comparison_reusable_tokens=num_reusable,
    )


def _ids(packed: bytes) -> "array[int]":
    ids = array("i")
    ids.frombytes(packed)
    return ids


def _cost(past: Past) -> int:
    return len(past.prompt) + _OVERHEAD
