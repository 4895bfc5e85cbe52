"""What operators may look back on: how the cache served the last requests, and which prompts defeat it.

It owns two bounded lists in memory, newest last. No text of any message is in them.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import msgspec

from engine.cache_messages import CacheReport, MissReason
from gateway.conversation.volatile import Finding
from gateway.paging import Page, Paging, UnknownCursor
from gateway.record import RequestRecord
from gateway.wire.cache_answers import TierTokens, has_parted

__all__ = ["Journal", "RequestEntry", "WarningEntry"]

MAX_REQUESTS = 1000
MAX_WARNINGS = 100


class _Entry(Protocol):
    @property
    def id(self) -> str: ...


E = TypeVar("E", bound=_Entry)


class RequestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and where its prompt came from."""

    id: str
    object: Literal["cache.request"] = "cache.request"
    created_at: int  # seconds since 1970
    tenant: str
    tokens: TierTokens
    computed: int
    parted_at: int | None  # a token of the prompt
    reason: MissReason
    ttft_ms: float | None


class WarningEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant whose prompts begin a little differently each time."""

    id: str
    object: Literal["cache.warning"] = "cache.warning"
    created_at: int  # seconds since 1970
    tenant: str
    message: int
    offset: int  # characters into that message
    lost_characters: int


@dataclass(slots=True, eq=False)
class Journal:
    """The last requests and warnings of one server."""

    _requests: deque[RequestEntry] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))
    _warnings: deque[WarningEntry] = field(default_factory=lambda: deque(maxlen=MAX_WARNINGS))
    _num_warnings: int = 0

    def add(self, record: RequestRecord) -> None:
        """Remember a request that has ended, if the engine told of its prompt."""
        report = record.cache
        if report is None or record.completion_id is None or record.tenant is None:
            return
        self._requests.append(_entry(record.completion_id, record.tenant, report, record.ttft_ms))

    def warn(self, finding: Finding) -> None:
        """Remember a finding."""
        self._num_warnings += 1
        self._warnings.append(
            WarningEntry(
                id=f"warn_{self._num_warnings}",
                created_at=int(time.time()),
                tenant=finding.tenant,
                message=finding.message,
                offset=finding.offset,
                lost_characters=finding.num_lost_characters,
            )
        )

    def requests(self, paging: Paging) -> Page[RequestEntry]:
        """Some requests. Raises UnknownCursor."""
        return _page(self._requests, paging)

    def warnings(self, paging: Paging) -> Page[WarningEntry]:
        """Some warnings. Raises UnknownCursor."""
        return _page(self._warnings, paging)


def _entry(completion_id: str, tenant: str, report: CacheReport, ttft_ms: float | None) -> RequestEntry:
    return RequestEntry(
        id=completion_id,
        created_at=int(time.time()),
        tenant=tenant,
        tokens=TierTokens.of(report),
        computed=report.num_computed_tokens,
        parted_at=report.parted_at if has_parted(report) else None,
        reason=report.reason,
        ttft_ms=ttft_ms,
    )


def _page(entries: Sequence[E], paging: Paging) -> Page[E]:
    ordered = list(entries) if paging.order == "asc" else list(reversed(entries))
    if paging.after is not None:
        found = next((place for place, each in enumerate(ordered) if each.id == paging.after), None)
        if found is None:
            raise UnknownCursor
        ordered = ordered[found + 1 :]
    return Page.cut(ordered[: paging.limit + 1], paging.limit)
