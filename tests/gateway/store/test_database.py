"""Connections: what their errors tell."""

from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError

from gateway.store.database import open_database
from gateway.store.tables import SharedPrefixRow


async def test_an_error_quotes_nothing_that_was_to_be_stored(tmp_path: Path) -> None:
    database = open_database(f"sqlite+aiosqlite:///{tmp_path / 'never-migrated.sqlite3'}")

    with pytest.raises(SQLAlchemyError) as failure:
        async with database.begin() as connection:
            await connection.execute(insert(SharedPrefixRow).values(id="x", messages="CANARY"))

    await database.dispose()
    assert "CANARY" not in str(failure.value)
