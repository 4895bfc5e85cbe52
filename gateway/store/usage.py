"""Rows of usage, written in batches beside the requests, never in their way.

`add` never waits. When the database is slower than the requests for long, rows are dropped and counted
rather than memory filled. A row leaves the queue when it is committed. What was added before `stop` is
written before `run` ends, if the database lets it in time; what is left then is counted as dropped.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import islice
from typing import Self

import structlog
from prometheus_client import Counter
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.errors import StoreUnavailable
from gateway.record import RequestRecord
from gateway.store.database import writing
from gateway.store.tables import Usage

__all__ = ["UsageLog", "UsageRow"]

_MAX_WAITING = 10_000
_MAX_BATCH = 500
_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0
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

    def values(self) -> dict[str, object]:
        """Its columns."""
        return {name: getattr(self, name) for name in _COLUMNS}

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


_COLUMNS = tuple(field.name for field in fields(UsageRow))


class UsageLog:
    """A bounded queue of rows and the loop that writes it."""

    def __init__(self, database: AsyncEngine, dropped: Counter) -> None:
        self.database = database
        self._dropped = dropped
        self._rows: deque[UsageRow] = deque()
        self._is_over = asyncio.Event()
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

    def stop(self) -> None:
        """Let `run` write what is left, and end."""
        self._is_over.set()

    async def run(self) -> None:
        """Write until stopped, then once more.

        It is not to be cancelled: a write that is cut off may leave the database locked.
        """
        writer = asyncio.create_task(self._write_until_stopped())
        await self._is_over.wait()
        await asyncio.wait((writer,), timeout=_FLUSH_SECONDS)
        if not writer.done():
            writer.cancel()
            await asyncio.wait((writer,))
        if self._rows:
            self._dropped.inc(len(self._rows))
            self._log.warning("usage.dropped", rows=len(self._rows))
            self._rows.clear()

    async def _write_until_stopped(self) -> None:
        pause = _PAUSE_SECONDS
        is_last = False
        while not is_last:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._is_over.wait()
            is_last = self._is_over.is_set()
            # what fails may do so for long, and each try is a line in the log
            pause = _PAUSE_SECONDS if await self._write_all() else min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _write_all(self) -> bool:
        """Whether everything was written, or given up."""
        while self._rows:
            batch = list(islice(self._rows, _MAX_BATCH))
            try:
                async with writing(self.database) as connection:
                    await connection.execute(insert(Usage), [row.values() for row in batch])
            except StoreUnavailable as error:
                self._log.warning("usage.not_written", rows=len(self._rows), reason=type(error).__name__)
                return False
            except Exception as error:  # noqa: BLE001 - usage must not end the server
                # it would fail again, and keep all that follows
                self._log.warning("usage.dropped", rows=len(batch), reason=type(error).__name__)
                self._dropped.inc(len(batch))
            for _ in batch:
                self._rows.popleft()
        return True
