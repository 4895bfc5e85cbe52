"""Connections: what their errors tell, and what becomes of them."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import SQLAlchemyError
from structlog.testing import capture_logs

from gateway.errors import InternalError, NotFound, StoreUnavailable
from gateway.store.database import open_database, reading, writing
from gateway.store.tables import SharedPrefixRow


async def test_an_error_quotes_nothing_that_was_to_be_stored(tmp_path: Path) -> None:
    database = open_database(f"sqlite+aiosqlite:///{tmp_path / 'never-migrated.sqlite3'}")

    with pytest.raises(SQLAlchemyError) as failure:
        async with database.begin() as connection:
            await connection.execute(insert(SharedPrefixRow).values(id="x", messages="CANARY"))

    await database.dispose()
    assert "CANARY" not in str(failure.value)


class DriversOwn(Exception):
    """Named as a driver's errors are."""

    __module__ = "asyncpg.exceptions"


@pytest.mark.parametrize("use", [reading, writing])
@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), TimeoutError(), DriversOwn()])
async def test_whatever_a_driver_raises_is_a_database_that_is_away(use: Any, error: Exception) -> None:
    class Down:
        def begin(self) -> None:
            raise error

        connect = begin

    with pytest.raises(StoreUnavailable), capture_logs() as lines:
        async with use(Down()):
            pass

    assert [(line["event"], line["reason"]) for line in lines] == [("store.failed", type(error).__name__)]


async def test_what_the_database_refuses_is_a_fault_of_ours(tmp_path: Path) -> None:
    database = open_database(f"sqlite+aiosqlite:///{tmp_path / 'x.sqlite3'}")

    with pytest.raises(StoreUnavailable):
        async with reading(database) as connection:
            await connection.execute(text("select * from nothing"))
    async with writing(database) as connection:
        await connection.execute(text("create table t (a integer not null)"))
    with pytest.raises(InternalError):
        async with writing(database) as connection:
            await connection.execute(text("insert into t values (null)"))

    await database.dispose()


@pytest.mark.parametrize("error", [NotFound("x"), KeyError("x")])
async def test_what_is_no_failure_of_the_database_passes(tmp_path: Path, error: Exception) -> None:
    database = open_database(f"sqlite+aiosqlite:///{tmp_path / 'x.sqlite3'}")

    with pytest.raises(type(error)):
        async with reading(database):
            raise error

    await database.dispose()
