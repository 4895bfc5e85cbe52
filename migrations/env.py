"""Run by Alembic: connects to the database that the configuration names and applies migrations there.

On SQLite all of them are one transaction: a start that is cut off leaves the schema as it was, and of two
gateways that start at once the second waits and finds the work done.
"""

import asyncio
from typing import Any

from alembic import context
from sqlalchemy import Connection, event, make_url, pool
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.store.database import prepare_sqlite
from gateway.store.tables import Base

_WAIT_SECONDS = 60  # for another process that migrates


def apply(connection: Connection) -> None:
    """Migrate over an open connection."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,  # SQLite alters a table by copying it
        transactional_ddl=True,  # SQLite can, though Alembic does not expect it: heads and changes are one
    )
    with context.begin_transaction():
        context.run_migrations()


def open_for_migration(url: str) -> AsyncEngine:
    """Connections whose transactions hold changes of the schema, too."""
    database = create_async_engine(url, poolclass=pool.NullPool)
    if make_url(url).get_backend_name() == "sqlite":
        event.listen(database.sync_engine, "connect", _take_transactions_over)
        event.listen(database.sync_engine, "begin", _begin_at_once)
    return database


def _take_transactions_over(connection: Any, record: object) -> None:
    # SQLite's driver would commit before each change of the schema
    connection.isolation_level = None
    prepare_sqlite(connection, record)
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_WAIT_SECONDS * 1000}")
    cursor.close()


def _begin_at_once(connection: Connection) -> None:
    # a lock that is taken at the first write could not be waited for
    connection.exec_driver_sql("BEGIN IMMEDIATE")


async def migrate() -> None:
    """Connect, migrate, disconnect."""
    database = open_for_migration(context.config.attributes["url"])
    try:
        async with database.connect() as connection:
            await connection.run_sync(apply)
            await connection.commit()
    except OperationalError:
        # the driver's thread still reports to this loop after a connection that failed
        await asyncio.sleep(0.1)
        raise
    finally:
        await database.dispose()


asyncio.run(migrate())
