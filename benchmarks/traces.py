"""What was asked for, request by request, as names of blocks: Mooncake's JSONL and Stemma's own log of usage.

A block's name is one int32 and stands where the tree expects a token: the simulated tree has blocks of one
token. Equal names after equal prefixes are equal blocks.

The column `prefix_trace` of the table `usage` holds, for each whole block of the prompt in order, four bytes
of a chained digest that begins with the namespace (see gateway/prefix_trace.py); NULL where it was not
recorded. How many tokens a block has is not written with it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    create_engine,
    make_url,
    select,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from prefix_cache.tokens import TOKEN_BYTES, pack

__all__ = ["BadTrace", "Request", "read_mooncake", "read_usage"]


class BadTrace(Exception):
    """A trace that cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt."""

    time: float  # seconds
    names: bytes  # its blocks' names in order, packed int32

    @property
    def num_blocks(self) -> int:
        """How long it is."""
        return len(self.names) // TOKEN_BYTES


def read_mooncake(path: Path) -> Iterator[Request]:
    """One JSON object a line: `timestamp` in ms, and `hash_ids`, one a block. Raises BadTrace."""
    try:
        lines = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror}") from None
    with lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield Request(row["timestamp"] / 1000, pack(row["hash_ids"]))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise BadTrace(f"{path}:{number}: not a request of a Mooncake trace: {error!r}") from None


def read_usage(source: str) -> list[Request]:
    """Rows of `usage` that have a `prefix_trace`, oldest first, from an SQLite file or a database's URL.

    Only reads. Raises BadTrace when there is no such table or column, or no row with a trace.
    """
    if "://" in source:
        url = _synchronous(source)
    elif Path(source).is_file():
        url = URL.create(
            "sqlite", database=f"file:{Path(source).resolve()}", query={"mode": "ro", "uri": "true"}
        )
    else:
        raise BadTrace(f"{source}: there is no such file")
    query = select(_usage.c.created_at, _usage.c.prefix_trace).where(_usage.c.prefix_trace.is_not(None))
    try:
        engine = create_engine(url)
        try:
            with engine.connect() as connection:
                rows = connection.execute(query.order_by(_usage.c.created_at, _usage.c.id)).all()
        finally:
            engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        raise BadTrace(f"the log of usage cannot be read: {str(error).splitlines()[0]}") from None
    if not rows:
        raise BadTrace("the log of usage has no row with a prefix_trace: nothing can be replayed")
    return [Request(created_at.timestamp(), _whole_names(trace)) for created_at, trace in rows]


_usage = Table(
    "usage",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("created_at", DateTime(timezone=True)),
    Column("prefix_trace", LargeBinary),
)


def _synchronous(source: str) -> URL:
    """The same database through a driver that blocks."""
    try:
        url = make_url(source)
    except ArgumentError as error:
        raise BadTrace(f"{source}: {error}") from None
    return url.set(drivername=url.get_backend_name())


def _whole_names(trace: bytes) -> bytes:
    return trace[: len(trace) // TOKEN_BYTES * TOKEN_BYTES]
