"""Connections to the database, and the one place where its failures become the gateway's own.

SQLite is put into write-ahead mode, where readers and the writer do not block each other, and waits for a
lock before it gives up. Whatever a driver raises, SQLAlchemy's errors or its own, leaves here as
StoreUnavailable or InternalError.
"""

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from sqlalchemy import event, make_url
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import GatewayError, InternalError, StoreUnavailable

__all__ = ["open_database", "prepare_sqlite", "reading", "writing"]

_CONVERSION_SECONDS = 5.0  # of a new file to write-ahead mode, by another process

_AWAY = (OperationalError, InterfaceError, PoolTimeout, OSError)


def open_database(url: str) -> AsyncEngine:
    """Connect lazily to `url`; whoever opens it disposes of it."""
    # parameters hold what clients wrote, and errors are logged
    database = create_async_engine(url, hide_parameters=True)
    if make_url(url).get_backend_name() == "sqlite":
        event.listen(database.sync_engine, "connect", prepare_sqlite)
    return database


@asynccontextmanager
async def reading(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection to read with. Raises StoreUnavailable and InternalError when the database fails."""
    async with _told(), database.connect() as connection:
        yield connection


@asynccontextmanager
async def writing(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection in a transaction that is committed at the end. Raises as `reading` does."""
    async with _told(), database.begin() as connection:
        yield connection


def prepare_sqlite(connection: Any, _record: object) -> None:
    """Set up a fresh connection of the driver's."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 5000")
    deadline = time.monotonic() + _CONVERSION_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            # Where another process converts a new file at this moment SQLite fails at once, whatever it was
            # told of waiting.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    cursor.close()


@asynccontextmanager
async def _told() -> AsyncIterator[None]:
    """Turn what the database raises into the gateway's word for it, and log its kind."""
    try:
        yield
    except GatewayError:
        raise
    except Exception as error:
        failure = _failure(error)
        if failure is None:
            raise
        structlog.get_logger().error("store.failed", reason=type(error).__name__)
        raise failure from error


def _failure(error: Exception) -> GatewayError | None:
    # a driver's own errors reach us as they are where a connection is made
    is_drivers = type(error).__module__.partition(".")[0] in ("asyncpg", "sqlite3")
    if is_drivers or isinstance(error, _AWAY):
        return StoreUnavailable("The database could not be used, and nothing was changed; send it again.")
    if isinstance(error, SQLAlchemyError):
        return InternalError("Something failed while the database was used.")
    return None
