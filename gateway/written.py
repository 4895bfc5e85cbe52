"""How much of a prompt a request has left in the cache, counted from what the engine reports.

Where a beginning is kept and the rest is not, the beginning is computed by a request of its own, ahead of the
one that is answered, which then finds it. Here both are counted as one.
"""

from collections.abc import Mapping

import msgspec

from engine.cache_messages import CacheReport
from engine.messages import Submit, TokenEvent
from gateway.wire.prompt_cache import Ttl
from gateway.wire.usage import CacheWrites

__all__ = ["num_left", "num_new", "with_beginning", "writes_by_ttl"]


def num_new(report: CacheReport | None) -> int:
    """The tokens that a request computed and that were not there: none of a prompt that was found whole, the
    last token of which is computed all the same.
    """
    return 0 if report is None or report.reason == "none" else report.num_computed_tokens


def num_left(submit: Submit, num_cached: int, report: CacheReport | None) -> int:
    """The tokens of a prompt that can be found from now on and could not before."""
    if submit.is_side:
        return 0
    return len(submit.prompt) // 4 - num_cached if report is None else num_new(report)


def with_beginning(event: TokenEvent, report: CacheReport, num_tokens: int) -> TokenEvent:
    """News of a request whose first tokens were computed ahead as `report` says: as if it had done so."""
    if event.num_cached_tokens < num_tokens:
        return event  # it did not find them yet
    told = event.cache
    if told is not None:
        told = CacheReport(
            num_device_tokens=report.num_device_tokens + max(told.num_device_tokens - num_tokens, 0),
            num_host_tokens=report.num_host_tokens + told.num_host_tokens,
            num_disk_tokens=report.num_disk_tokens + told.num_disk_tokens,
            num_computed_tokens=num_new(report) + told.num_computed_tokens,
            num_copied_blocks=report.num_copied_blocks + told.num_copied_blocks,
            parted_at=report.parted_at if num_new(report) else told.parted_at,
            reason=report.reason if num_new(report) else told.reason,
        )
        if not num_new(report):  # but for its last token, which was there
            told = msgspec.structs.replace(told, num_device_tokens=told.num_device_tokens + 1)
    return msgspec.structs.replace(
        event, num_cached_tokens=event.num_cached_tokens - num_new(report), cache=told
    )


def writes_by_ttl(kept: Mapping[Ttl, int], start: int, end: int) -> CacheWrites:
    """Of the tokens from `start` to `end`, which were written, how many are kept for how long. `kept` has the
    lengths of beginnings.
    """
    longer = min(max(kept.get("12h", 0), start), end)
    shorter = min(max(kept.get("30m", 0), longer), end)
    return CacheWrites(ttl_30m_tokens=shorter - longer, ttl_12h_tokens=longer - start)
