"""Connections to the database.

SQLite is put into write-ahead mode, where readers and the writer do not block each other, and waits for a
lock before it gives up.
"""

from typing import Any

from sqlalchemy import event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

__all__ = ["open_database"]


def open_database(url: str) -> AsyncEngine:
    """Connect lazily to `url`; whoever opens it disposes of it."""
    # parameters hold what clients wrote, and errors are logged
    database = create_async_engine(url, hide_parameters=True)
    if make_url(url).get_backend_name() == "sqlite":
        event.listen(database.sync_engine, "connect", _prepare_sqlite)
    return database


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA busy_timeout = 5000")
    cursor.close()
