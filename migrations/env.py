"""Run by Alembic: connects to the database that the configuration names and applies migrations there."""

import asyncio

from alembic import context
from sqlalchemy import Connection, pool
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.store.tables import Base


def apply(connection: Connection) -> None:
    """Migrate over an open connection."""
    # SQLite alters a table by copying it
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


async def migrate() -> None:
    """Connect, migrate, disconnect."""
    database = create_async_engine(context.config.attributes["url"], poolclass=pool.NullPool)
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
