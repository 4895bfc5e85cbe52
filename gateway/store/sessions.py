"""Rows of sessions and their messages.

Every query names the tenant, so a session of another tenant is a session that does not exist. What a client
wrote reaches the database only as parameters. A turn is written in one transaction, or not at all.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Select, delete, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import aliased

from gateway.paging import Page, Paging
from gateway.store.keyset import page_of, utc
from gateway.store.tables import SessionMessageRow, SessionRow

__all__ = ["NewMessage", "Session", "SessionStore", "StoredMessage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A stored conversation, without its messages."""

    id: str
    tenant: str
    model: str
    namespace: bytes
    created_at: datetime
    updated_at: datetime
    parent_id: str | None
    root_id: str  # the first of its line of forks
    metadata: dict[str, str]
    num_turns: int
    num_messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to store: JSON text of ASCII characters, and the ids that the model drew, packed int32."""

    json: str
    token_ids: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message of a session. `token_ids` are packed int32, and only of the model's own answers."""

    position: int
    message: dict[str, Any]
    token_ids: bytes | None
    created_at: datetime


class SessionStore:
    """The sessions of every tenant. Raises SQLAlchemyError when the database fails."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def create(self, session: Session, messages: Sequence[NewMessage]) -> None:
        """Store a session with its first messages. `num_messages` of the argument is not read."""
        async with self._database.begin() as connection:
            await connection.execute(insert(SessionRow).values(_values(session)))
            if messages:
                rows = _message_rows(session.id, 0, messages, session.created_at)
                await connection.execute(insert(SessionMessageRow), rows)

    async def get(self, tenant: str, session_id: str) -> Session | None:
        """A session of this tenant."""
        async with self._database.connect() as connection:
            query = _sessions().where(SessionRow.tenant == tenant, SessionRow.id == session_id)
            row = (await connection.execute(query)).one_or_none()
            return None if row is None else _session(row)

    async def page(self, tenant: str, paging: Paging) -> Page[Session]:
        """Some of a tenant's sessions, by time of creation. Raises UnknownCursor."""
        async with self._database.connect() as connection:
            rows = await page_of(
                connection,
                _sessions().where(SessionRow.tenant == tenant),
                paging,
                created_at=SessionRow.created_at,
                key=SessionRow.id,
                scope=SessionRow.tenant == tenant,
            )
        return Page.cut([_session(row) for row in rows], paging.limit)

    async def history(self, tenant: str, session_id: str) -> list[StoredMessage]:
        """All messages in order; none of a session that is not this tenant's."""
        async with self._database.connect() as connection:
            query = _messages(tenant, session_id).order_by(SessionMessageRow.position)
            return [_message(row) for row in await connection.execute(query)]

    async def messages(
        self, tenant: str, session_id: str, *, after: int | None, limit: int, descending: bool
    ) -> Page[StoredMessage]:
        """Some messages, beside the one at position `after`."""
        position = SessionMessageRow.position
        query = _messages(tenant, session_id).order_by(position.desc() if descending else position)
        if after is not None:
            query = query.where(position < after if descending else position > after)
        async with self._database.connect() as connection:
            rows = (await connection.execute(query.limit(limit + 1))).all()
        return Page.cut([_message(row) for row in rows], limit)

    async def append(self, session: Session, messages: Sequence[NewMessage]) -> bool:
        """Add a turn after the history that `session` was read with. False: others changed it since then."""
        now = datetime.now(UTC)
        async with self._database.begin() as connection:
            counted = await connection.execute(
                update(SessionRow)
                .where(
                    SessionRow.tenant == session.tenant,
                    SessionRow.id == session.id,
                    SessionRow.num_turns == session.num_turns,
                )
                .values(num_turns=session.num_turns + 1, updated_at=now)
            )
            if counted.rowcount != 1:
                return False
            rows = _message_rows(session.id, session.num_messages, messages, now)
            await connection.execute(insert(SessionMessageRow), rows)
        return True

    async def fork(self, source: Session, fork: Session, *, num_messages: int) -> None:
        """Store `fork` with the first messages of `source`, copied inside the database."""
        message = SessionMessageRow
        copied = select(
            literal(fork.id), message.position, message.message_json, message.token_ids, message.created_at
        ).where(message.session_id == _owned(source.tenant, source.id), message.position < num_messages)
        names = ["session_id", "position", "message", "token_ids", "created_at"]
        async with self._database.begin() as connection:
            await connection.execute(insert(SessionRow).values(_values(fork)))
            await connection.execute(insert(SessionMessageRow).from_select(names, copied))

    async def num_shared_messages(self, session: Session) -> int:
        """How many of the first messages another session of the same line of forks begins with, too."""
        mine, other = aliased(SessionMessageRow), aliased(SessionMessageRow)
        alike = (
            select(other.session_id, other.position)
            .join(mine, (mine.position == other.position) & (mine.message_json == other.message_json))
            .join(SessionRow, SessionRow.id == other.session_id)
            .where(
                mine.session_id == _owned(session.tenant, session.id),
                mine.token_ids.is_not_distinct_from(other.token_ids),
                SessionRow.tenant == session.tenant,
                SessionRow.root_id == session.root_id,
                SessionRow.namespace == session.namespace,
                SessionRow.id != session.id,
            )
            .order_by(other.session_id, other.position)
        )
        num_alike: dict[str, int] = {}
        async with self._database.connect() as connection:
            for session_id, position in await connection.execute(alike):
                if position == num_alike.get(session_id, 0):
                    num_alike[session_id] = position + 1
        return max(num_alike.values(), default=0)

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Remove a session and its messages. False: there is none."""
        async with self._database.begin() as connection:
            # the session first: whoever adds a turn meanwhile waits for it, and then finds it gone
            gone = await connection.execute(
                delete(SessionRow).where(SessionRow.tenant == tenant, SessionRow.id == session_id)
            )
            if gone.rowcount != 1:
                return False
            await connection.execute(
                delete(SessionMessageRow).where(SessionMessageRow.session_id == session_id)
            )
        return True


def _sessions() -> Select[Any]:
    counted = (
        select(func.count())
        .select_from(SessionMessageRow)
        .where(SessionMessageRow.session_id == SessionRow.id)
        .scalar_subquery()
        .label("num_messages")
    )
    return select(SessionRow.__table__, counted)


def _messages(tenant: str, session_id: str) -> Select[Any]:
    return select(SessionMessageRow.__table__).where(
        SessionMessageRow.session_id == _owned(tenant, session_id)
    )


def _owned(tenant: str, session_id: str) -> Any:
    """The session's id, if the session is the tenant's."""
    owned = select(SessionRow.id).where(SessionRow.tenant == tenant, SessionRow.id == session_id)
    return owned.scalar_subquery()


def _values(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "tenant": session.tenant,
        "model": session.model,
        "namespace": session.namespace,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "parent_id": session.parent_id,
        "root_id": session.root_id,
        "metadata": json.dumps(session.metadata),
        "num_turns": session.num_turns,
    }


def _message_rows(
    session_id: str, start: int, messages: Sequence[NewMessage], now: datetime
) -> list[dict[str, Any]]:
    return [
        {
            "session_id": session_id,
            "position": position,
            "message": message.json,
            "token_ids": message.token_ids,
            "created_at": now,
        }
        for position, message in enumerate(messages, start)
    ]


def _session(row: Row[Any]) -> Session:
    return Session(
        id=row.id,
        tenant=row.tenant,
        model=row.model,
        namespace=row.namespace,
        created_at=utc(row.created_at),
        updated_at=utc(row.updated_at),
        parent_id=row.parent_id,
        root_id=row.root_id,
        metadata=json.loads(row.metadata),
        num_turns=row.num_turns,
        num_messages=row.num_messages,
    )


def _message(row: Row[Any]) -> StoredMessage:
    return StoredMessage(
        position=row.position,
        message=json.loads(row.message),
        token_ids=row.token_ids,
        created_at=utc(row.created_at),
    )
