"""Rows of sessions and their messages.

Every query names the tenant, so a session of another tenant is a session that does not exist. What a client
wrote reaches the database only as parameters. A turn is written in one transaction, or not at all.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from sqlalchemy import Row, Select, delete, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import aliased

from gateway.paging import Page, Paging
from gateway.store.database import reading, writing
from gateway.store.keyset import page_of, utc
from gateway.store.tables import SessionMessageRow, SessionRow

__all__ = ["NewMessage", "Session", "SessionStore", "StoredMessage"]

_PAGE_BYTES = 1 << 20  # of messages
_DIGEST_BYTES = 16


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
    num_bytes: int  # of the message as JSON text
    message: dict[str, Any]
    token_ids: bytes | None
    created_at: datetime


class SessionStore:
    """The sessions of every tenant. Raises StoreUnavailable and InternalError when the database fails."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def create(self, session: Session, messages: Sequence[NewMessage]) -> None:
        """Store a session with its first messages. `num_messages` of the argument is not read."""
        async with writing(self._database) as connection:
            await connection.execute(insert(SessionRow).values(_values(session)))
            if messages:
                rows = _message_rows(session, 0, _seed(session), messages, session.created_at)
                await connection.execute(insert(SessionMessageRow), rows)

    async def get(self, tenant: str, session_id: str) -> Session | None:
        """A session of this tenant."""
        async with reading(self._database) as connection:
            query = _sessions().where(SessionRow.tenant == tenant, SessionRow.id == session_id)
            row = (await connection.execute(query)).one_or_none()
            return None if row is None else _session(row)

    async def page(self, tenant: str, paging: Paging) -> Page[Session]:
        """Some of a tenant's sessions, by time of creation. Raises UnknownCursor."""
        async with reading(self._database) as connection:
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
        async with reading(self._database) as connection:
            query = _messages(tenant, session_id).order_by(SessionMessageRow.position)
            return [_message(row) for row in await connection.execute(query)]

    async def messages(
        self, tenant: str, session_id: str, *, after: int | None, limit: int, descending: bool
    ) -> Page[StoredMessage]:
        """Some messages, beside the one at position `after`: as many as `limit` and a page's bytes allow."""
        position = SessionMessageRow.position
        owned = SessionMessageRow.session_id == _owned(tenant, session_id)
        sizes = select(position, func.length(SessionMessageRow.message_json).label("num_bytes")).where(owned)
        if after is not None:
            sizes = sizes.where(position < after if descending else position > after)
        order = position.desc() if descending else position
        async with reading(self._database) as connection:
            found = (await connection.execute(sizes.order_by(order).limit(limit + 1))).all()
            wanted = _within_a_page(found)[:limit]
            query = _messages(tenant, session_id).where(position.in_(wanted)).order_by(order)
            rows = (await connection.execute(query)).all()
        return Page([_message(row) for row in rows], has_more=len(found) > len(wanted))

    async def append(self, session: Session, messages: Sequence[NewMessage]) -> bool:
        """Add a turn after the history that `session` was read with. False: others changed it since then."""
        now = datetime.now(UTC)
        async with writing(self._database) as connection:
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
            last = select(SessionMessageRow.prefix_digest).where(
                SessionMessageRow.session_id == session.id,
                SessionMessageRow.position == session.num_messages - 1,
            )
            before = (await connection.execute(last)).scalar_one_or_none() or _seed(session)
            rows = _message_rows(session, session.num_messages, before, messages, now)
            await connection.execute(insert(SessionMessageRow), rows)
        return True

    async def fork(self, source: Session, fork: Session, *, num_messages: int) -> bool:
        """Store `fork` with the first messages of `source`, copied inside the database. False, and nothing is
        stored: `source` has no longer so many.
        """
        message = SessionMessageRow
        copied = select(
            literal(fork.id),
            message.position,
            message.message_json,
            message.token_ids,
            message.prefix_digest,
            message.created_at,
        ).where(message.session_id == _owned(source.tenant, source.id), message.position < num_messages)
        names = ["session_id", "position", "message", "token_ids", "prefix_digest", "created_at"]
        async with writing(self._database) as connection:
            await connection.execute(insert(SessionRow).values(_values(fork)))
            added = await connection.execute(insert(SessionMessageRow).from_select(names, copied))
            if added.rowcount != num_messages:
                await connection.rollback()
                return False
        return True

    async def num_sessions(self, tenant: str) -> int:
        """How many sessions a tenant has."""
        query = select(func.count()).select_from(SessionRow).where(SessionRow.tenant == tenant)
        async with reading(self._database) as connection:
            return int((await connection.execute(query)).scalar_one())

    async def num_shared_messages(self, session: Session) -> int:
        """How many of the first messages any other session of the same namespace begins with, too."""
        mine, other = aliased(SessionMessageRow), aliased(SessionMessageRow)
        query = (
            select(func.coalesce(func.max(mine.position) + 1, 0))
            .join(other, other.prefix_digest == mine.prefix_digest)
            .where(mine.session_id == _owned(session.tenant, session.id), other.session_id != session.id)
        )
        async with reading(self._database) as connection:
            return int((await connection.execute(query)).scalar_one())

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Remove a session and its messages. False: there is none."""
        async with writing(self._database) as connection:
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


def _within_a_page(sizes: Sequence[Row[Any]]) -> list[int]:
    """The leading positions whose messages fit into a page; one always does."""
    totals = accumulate(row.num_bytes for row in sizes)
    return [
        row.position
        for place, (row, total) in enumerate(zip(sizes, totals, strict=True))
        if place == 0 or total <= _PAGE_BYTES
    ]


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
        "metadata": json.dumps(session.metadata),
        "num_turns": session.num_turns,
    }


def _seed(session: Session) -> bytes:
    """Where the digests of a session's messages begin: what two namespaces say never looks alike."""
    return blake2b(session.namespace, digest_size=_DIGEST_BYTES).digest()


def _message_rows(
    session: Session, start: int, before: bytes, messages: Sequence[NewMessage], now: datetime
) -> list[dict[str, Any]]:
    """Rows of messages from position `start` on, after messages with the digest `before`."""
    rows = []
    for position, message in enumerate(messages, start):
        state = blake2b(before, digest_size=_DIGEST_BYTES)
        state.update(len(message.json).to_bytes(8, "big") + message.json.encode())
        state.update(message.token_ids or b"")
        before = state.digest()
        rows.append(
            {
                "session_id": session.id,
                "position": position,
                "message": message.json,
                "token_ids": message.token_ids,
                "prefix_digest": before,
                "created_at": now,
            }
        )
    return rows


def _session(row: Row[Any]) -> Session:
    return Session(
        id=row.id,
        tenant=row.tenant,
        model=row.model,
        namespace=row.namespace,
        created_at=utc(row.created_at),
        updated_at=utc(row.updated_at),
        parent_id=row.parent_id,
        metadata=json.loads(row.metadata),
        num_turns=row.num_turns,
        num_messages=row.num_messages,
    )


def _message(row: Row[Any]) -> StoredMessage:
    return StoredMessage(
        position=row.position,
        num_bytes=len(row.message),
        message=json.loads(row.message),
        token_ids=row.token_ids,
        created_at=utc(row.created_at),
    )
