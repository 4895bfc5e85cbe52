"""Rows of shared prefixes: messages whose keys and values every tenant may see."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select, true
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.paging import Page, Paging
from gateway.store.database import reading, writing
from gateway.store.keyset import page_of, utc
from gateway.store.tables import SharedPrefixRow

__all__ = ["PrefixStore", "SharedPrefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Messages to begin with, as the administrator sent them."""

    id: str
    created_at: datetime
    name: str | None
    messages: Sequence[dict[str, Any]]


class PrefixStore:
    """All of them. Raises StoreUnavailable and InternalError when the database fails."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def add(self, prefix: SharedPrefix) -> None:
        """Store one."""
        row = {
            "id": prefix.id,
            "created_at": prefix.created_at,
            "name": prefix.name,
            "messages": json.dumps(prefix.messages),
        }
        async with writing(self._database) as connection:
            await connection.execute(insert(SharedPrefixRow).values(row))

    async def get(self, prefix_id: str) -> SharedPrefix | None:
        """One of them."""
        query = select(SharedPrefixRow.__table__).where(SharedPrefixRow.id == prefix_id)
        async with reading(self._database) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _prefix(row)

    async def all(self) -> list[SharedPrefix]:
        """Every one, oldest first."""
        query = select(SharedPrefixRow.__table__).order_by(SharedPrefixRow.created_at, SharedPrefixRow.id)
        async with reading(self._database) as connection:
            return [_prefix(row) for row in await connection.execute(query)]

    async def page(self, paging: Paging) -> Page[SharedPrefix]:
        """Some of them, by time of creation. Raises UnknownCursor."""
        async with reading(self._database) as connection:
            rows = await page_of(
                connection,
                select(SharedPrefixRow.__table__),
                paging,
                created_at=SharedPrefixRow.created_at,
                key=SharedPrefixRow.id,
                scope=true(),
            )
        return Page.cut([_prefix(row) for row in rows], paging.limit)

    async def delete(self, prefix_id: str) -> bool:
        """Remove one. False: there is none."""
        async with writing(self._database) as connection:
            gone = await connection.execute(delete(SharedPrefixRow).where(SharedPrefixRow.id == prefix_id))
        return gone.rowcount == 1


def _prefix(row: Row[Any]) -> SharedPrefix:
    return SharedPrefix(
        id=row.id, created_at=utc(row.created_at), name=row.name, messages=json.loads(row.messages)
    )
