"""What is known of one request while it runs: the facts of its log line, its metrics and its row of usage.

Filled by whoever learns a fact, read once at the end. It holds no text of any message and no key.
"""

import time
from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import Request

from engine.cache_messages import CacheReport

__all__ = ["Outcome", "RequestRecord", "record_of"]

Outcome = Literal["completed", "aborted", "failed", "rejected"]


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One HTTP request. Times are seconds of a clock that only runs forward."""

    request_id: str
    started: float = field(default_factory=time.monotonic)
    route: str = "unmatched"
    method: str = "other"
    status: int | None = None  # None: nothing was sent
    tenant: str | None = None
    model: str | None = None
    # of a request for text
    is_generation: bool = False
    outcome: Outcome = "rejected"
    # of one that went to the engine
    completion_id: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None  # of choice 0
    first_token: float | None = None
    cache: CacheReport | None = None  # of choice 0
    prefix_trace: bytes | None = None

    @property
    def ttft_ms(self) -> float | None:
        """Milliseconds to the first token; None if there was none."""
        return None if self.first_token is None else _milliseconds(self.first_token - self.started)

    def total_ms(self, now: float) -> float:
        """Milliseconds since the request came in."""
        return _milliseconds(now - self.started)


def record_of(request: Request) -> RequestRecord:
    """The record of a request that the observing middleware let in."""
    record = request.state.record
    assert isinstance(record, RequestRecord)
    return record


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)
