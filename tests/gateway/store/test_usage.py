"""Usage: written beside the requests, and never in their way."""

import asyncio
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.store import usage
from gateway.store.database import open_database
from gateway.store.migrate import upgrade
from gateway.store.usage import UsageLog, UsageRow

ROW = UsageRow(
    created_at=datetime.now(UTC),
    tenant="a",
    model="m",
    request_id="r",
    completion_id="c",
    prompt_tokens=5,
    cached_tokens=4,
    completion_tokens=3,
    finish_reason="stop",
    outcome="completed",
    ttft_ms=1.5,
    total_ms=2.5,
    prefix_trace=b"12345678",
)


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    path = tmp_path / "usage.sqlite3"
    upgrade(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture
def dropped() -> Counter:
    return Counter("dropped", "rows", registry=CollectorRegistry())


async def run_and_stop(path: Path, rows: list[UsageRow], dropped: Counter) -> None:
    database = open_database(f"sqlite+aiosqlite:///{path}")
    log = UsageLog(database, dropped)
    writer = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    for row in rows:
        log.add(row)
    log.stop()
    await writer
    await database.dispose()


def count(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        query = "select count(*) from usage where tenant = 'a' and length(prefix_trace) = 8"
        return int(connection.execute(query).fetchone()[0])
    finally:
        connection.close()


def test_what_was_added_is_written_before_the_end(database_path: Path, dropped: Counter) -> None:
    rows = [replace(ROW, request_id=str(number)) for number in range(1200)]

    asyncio.run(run_and_stop(database_path, rows, dropped))

    assert count(database_path) == 1200


def test_a_database_that_fails_costs_rows_and_nothing_else(tmp_path: Path, dropped: Counter) -> None:
    asyncio.run(run_and_stop(tmp_path / "never-migrated.sqlite3", [ROW, ROW], dropped))

    assert dropped._value.get() == 2


async def test_a_row_leaves_the_queue_when_it_is_written_and_not_before(
    database_path: Path, dropped: Counter
) -> None:
    database = open_database(f"sqlite+aiosqlite:///{database_path}")
    log = UsageLog(database, dropped)
    other = sqlite3.connect(database_path, isolation_level=None)
    other.execute("begin immediate")
    log.add(ROW)

    log.stop()
    writer = asyncio.create_task(log.run())
    await asyncio.sleep(0.2)  # the write waits for the other one's lock
    num_waiting = len(log.waiting)
    log.add(ROW)
    other.execute("rollback")
    await writer

    await database.dispose()
    other.execute("begin immediate")  # nothing is left locked
    other.close()
    assert (num_waiting, len(log.waiting)) == (1, 0)
    assert count(database_path) == 2
    assert dropped._value.get() == 0


async def test_rows_are_kept_while_the_database_is_away(
    database_path: Path, dropped: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_PAUSE_SECONDS", 0.005)
    database = open_database(f"sqlite+aiosqlite:///{database_path}")
    away = Away(database)
    log = UsageLog(away, dropped)  # type: ignore[arg-type]
    writer = asyncio.create_task(log.run())
    log.add(ROW)

    async with asyncio.timeout(5):
        while away.num_tries < 3:
            await asyncio.sleep(0.005)
        away.is_away = False
        while log.waiting:
            await asyncio.sleep(0.005)
    log.stop()
    await writer

    await database.dispose()
    assert count(database_path) == 1
    assert dropped._value.get() == 0


async def test_what_cannot_be_written_is_given_up_and_keeps_nothing_else(
    database_path: Path, dropped: Counter
) -> None:
    database = open_database(f"sqlite+aiosqlite:///{database_path}")
    log = UsageLog(database, dropped)
    for _ in range(500):
        log.add(replace(ROW, tenant=None))  # type: ignore[arg-type]
    log.add(ROW)

    log.stop()
    await log.run()

    await database.dispose()
    assert count(database_path) == 1
    assert dropped._value.get() == 500


class Away:
    """A database that refuses connections for a time, as a driver does."""

    def __init__(self, database: AsyncEngine) -> None:
        self.database = database
        self.is_away = True
        self.num_tries = 0

    def begin(self) -> object:
        self.num_tries += 1
        if self.is_away:
            raise ConnectionRefusedError(111, "Connect call failed")
        return self.database.begin()


async def test_adding_never_waits_and_never_grows_without_bound(dropped: Counter) -> None:
    database = open_database("sqlite+aiosqlite://")
    log = UsageLog(database, dropped)

    for _ in range(10_050):
        log.add(ROW)

    assert dropped._value.get() == 50
    await database.dispose()
