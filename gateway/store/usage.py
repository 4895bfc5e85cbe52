"""Rows of usage, written in batches beside the requests, never in their way.

`add` never waits. When the database is slower than the requests for long, rows are dropped and counted
rather than memory filled. What was added before `run` is cancelled is written before it ends, if the
database lets it in time.
"""

import asyncio
from collections import deque
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

import structlog
from prometheus_client import Counter
from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.record import RequestRecord
from gateway.store.tables import Usage

__all__ = ["UsageLog", "UsageRow"]

_MAX_WAITING = 10_000
_MAX_BATCH = 500
_PAUSE_SECONDS = 0.5
_FLUSH_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """One row of the table."""

    created_at: datetime
    tenant: str
    model: str
    request_id: str
    completion_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str | None
    outcome: str
    ttft_ms: float | None
    total_ms: float
    prefix_trace: bytes | None

    @classmethod
    def of(cls, record: RequestRecord, now: float) -> Self:
        """The row of a request that went to the engine."""
        assert record.tenant is not None, "a request without a tenant reached the engine"
        assert record.model is not None, "a request without a model reached the engine"
        assert record.completion_id is not None, "a request without an id reached the engine"
        return cls(
            created_at=datetime.now(UTC),
            tenant=record.tenant,
            model=record.model,
            request_id=record.request_id,
            completion_id=record.completion_id,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            completion_tokens=record.completion_tokens,
            finish_reason=record.finish_reason,
            outcome=record.outcome,
            ttft_ms=record.ttft_ms,
            total_ms=record.total_ms(now),
            prefix_trace=record.prefix_trace,
        )


class UsageLog:
    """A bounded queue of rows and the loop that writes it."""

    def __init__(self, database: AsyncEngine, dropped: Counter) -> None:
        self.database = database
        self._dropped = dropped
        self._rows: deque[UsageRow] = deque()
        self._log = structlog.get_logger()

    @property
    def waiting(self) -> tuple[UsageRow, ...]:
        """Rows that are not written yet, oldest first."""
        return tuple(self._rows)

    def add(self, row: UsageRow) -> None:
        """Queue a row; never waits."""
        if len(self._rows) >= _MAX_WAITING:
            self._dropped.inc()
            return
        self._rows.append(row)

    async def run(self) -> None:
        """Write until cancelled, then once more."""
        try:
            while True:
                await asyncio.sleep(_PAUSE_SECONDS)
                await self._write_all()
        finally:
            try:
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._write_all()
            except TimeoutError:
                self._log.warning("usage.not_written", rows=len(self._rows), reason="timeout")

    async def _write_all(self) -> None:
        while self._rows:
            batch = [self._rows.popleft() for _ in range(min(_MAX_BATCH, len(self._rows)))]
            try:
                async with self.database.begin() as connection:
                    await connection.execute(insert(Usage), [asdict(row) for row in batch])
            except SQLAlchemyError as error:
                self._dropped.inc(len(batch))
                self._log.warning("usage.not_written", rows=len(batch), reason=type(error).__name__)
