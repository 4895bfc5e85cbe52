"""Pages of a table in the order of creation, by keys instead of offsets, so that no row is told twice."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from gateway.paging import Paging, UnknownCursor

__all__ = ["page_of", "seconds_since_1970", "utc"]


async def page_of(
    connection: AsyncConnection,
    query: Select[Any],
    paging: Paging,
    *,
    created_at: InstrumentedAttribute[datetime],
    key: InstrumentedAttribute[str],
    scope: ColumnElement[bool],
) -> list[Row[Any]]:
    """One row more than the page holds, if there is one more. `scope` says which rows `after` may name.

    Raises UnknownCursor.
    """
    place = tuple_(created_at, key)
    if paging.after is not None:
        found = await connection.execute(select(created_at).where(key == paging.after, scope))
        began = found.scalar_one_or_none()
        if began is None:
            raise UnknownCursor
        cursor = tuple_(began, paging.after)
        query = query.where(place > cursor if paging.order == "asc" else place < cursor)
    ends = (created_at, key) if paging.order == "asc" else (created_at.desc(), key.desc())
    return list(await connection.execute(query.order_by(*ends).limit(paging.limit + 1)))


def utc(moment: datetime) -> datetime:
    """SQLite forgets the zone; everything is written in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def seconds_since_1970(moment: datetime) -> int:
    """As the protocol tells times."""
    return int(utc(moment).timestamp())
