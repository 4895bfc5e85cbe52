"""What may be done with sessions: kept, told, continued, forked, deleted.

It owns the order of things where rows, ids and the engine meet. While a session is changed, nobody else of
this process works on it; the store's counter of turns holds the rest off.
"""

import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gateway.errors import Conflict, ContextTooLong, InvalidRequest, NotFound
from gateway.rendering import ChatRenderer, num_common
from gateway.services import Services
from gateway.sessions.history import Histories, History
from gateway.sessions.leftovers import Leftovers
from gateway.sessions.line import SessionLine
from gateway.sessions.turn import Turn
from gateway.setting_sections import ConversationSettings
from gateway.store.sessions import NewMessage, Session, SessionStore
from gateway.wire.stored import as_json

__all__ = ["Sessions"]

_ID = re.compile(r"sess_[0-9a-f]{24}")
_UNKNOWN = "There is no session of this id."


class Sessions:
    """The sessions of every tenant."""

    def __init__(self, services: Services, renderer: ChatRenderer, settings: ConversationSettings) -> None:
        self.store = SessionStore(services.database)
        self._services = services
        self._settings = settings
        self._histories = Histories(renderer)
        self._leftovers = Leftovers(services.engine, self._histories, services.lifecycle)
        self._line = SessionLine()

    async def create(
        self,
        tenant: str,
        *,
        salt: str | None,
        metadata: dict[str, str] | None,
        messages: Sequence[dict[str, Any]],
    ) -> Session:
        """A new session, which begins with these messages. Raises InvalidRequest and Conflict if that is more
        than is kept.
        """
        stored = [NewMessage(json=as_json(message)) for message in messages]
        self._require_room(0, stored)
        await self._require_place(tenant)
        now = datetime.now(UTC)
        session_id = _fresh_id()
        session = Session(
            id=session_id,
            tenant=tenant,
            model=self._services.catalog.name,
            namespace=self._services.namespaces.of(tenant, salt),
            created_at=now,
            updated_at=now,
            parent_id=None,
            metadata=metadata or {},
            num_turns=0,
            num_messages=len(messages),
        )
        await self.store.create(session, stored)
        return session

    async def get(self, tenant: str, session_id: str) -> Session:
        """Raises NotFound, the same for a session of somebody else."""
        # only what could be an id is looked up: databases differ in what strings they take
        session = await self.store.get(tenant, session_id) if _ID.fullmatch(session_id) else None
        if session is None:
            raise NotFound(_UNKNOWN, param="session_id")
        return session

    async def read(self, session: Session) -> bytes:
        """The ids that stand for a session, packed int32, as many as the engine's longest request has.

        Raises InvalidRequest when no template takes it, ContextTooLong when it can never be a prompt.
        """
        history = History.of(await self.store.history(session.tenant, session.id))
        ids = await self._histories.ids(history, session.namespace, self._limit)
        return ids.tobytes()

    async def too_long(self, turn: Turn, refusal: ContextTooLong) -> ContextTooLong:
        """The refusal of a turn that does not fit, in terms of its session."""
        if not turn.history.messages:
            return refusal
        try:
            ids = await self._histories.ids(turn.history, turn.session.namespace, self._limit)
        except InvalidRequest:
            length = "more than fits"
        else:
            length = f"{len(ids):,} tokens" if len(ids) < self._limit else f"{len(ids):,} tokens or more"
        return ContextTooLong(
            f"{refusal.message} The session's history alone has {length}: fork its beginning (up_to), "
            "or begin a new session.",
            param=refusal.param,
        )

    @asynccontextmanager
    async def alone(self, tenant: str, session_id: str) -> AsyncIterator[Session]:
        """A session that nobody else works on for the block. Raises NotFound and Conflict."""
        await self.get(tenant, session_id)  # nobody waits for a session that is not theirs
        with await self._line.enter(session_id, wait_seconds=self._settings.change_wait_seconds):
            yield await self.get(tenant, session_id)

    async def begin_turn(
        self, tenant: str, session_id: str, model: str, new_messages: Sequence[dict[str, Any]]
    ) -> Turn:
        """Take the next turn; whoever gets it releases it. Raises NotFound, Conflict and InvalidRequest."""
        await self.get(tenant, session_id)
        hold = await self._line.enter(session_id, wait_seconds=self._settings.turn_wait_seconds)
        try:
            session = await self.get(tenant, session_id)
            if session.model != model:
                raise InvalidRequest(
                    "This session was held with another model than the one that is served now; "
                    "begin a new session with its messages.",
                    param="model",
                    code="model_mismatch",
                )
            stored = await self.store.history(tenant, session_id)
            num_bytes = sum(each.num_bytes for each in stored)
            self._require_room(num_bytes, [NewMessage(json=as_json(message)) for message in new_messages])
        except BaseException:
            hold.release()
            raise
        return Turn(
            store=self.store,
            turns=self._services.metrics.session_turns,
            hold=hold,
            leftovers=self._leftovers,
            session=replace(session, num_messages=len(stored)),
            history=History.of(stored),
            new_messages=new_messages,
        )

    async def fork(
        self, tenant: str, session_id: str, *, up_to: int | None, metadata: dict[str, str] | None
    ) -> Session:
        """A new session with the first messages of another. Raises NotFound, Conflict, InvalidRequest."""
        async with self.alone(tenant, session_id) as source:
            num_messages = source.num_messages if up_to is None else up_to
            if num_messages > source.num_messages:
                raise InvalidRequest(
                    f"up_to is {num_messages:,}, and the session has {source.num_messages:,} messages.",
                    param="up_to",
                )
            await self._require_place(tenant)
            now = datetime.now(UTC)
            fork = replace(
                source,
                id=_fresh_id(),
                created_at=now,
                updated_at=now,
                parent_id=source.id,
                metadata=source.metadata if metadata is None else metadata,
                num_turns=0,
                num_messages=num_messages,
            )
            if not await self.store.fork(source, fork, num_messages=num_messages):
                raise NotFound(_UNKNOWN, param="session_id")  # another gateway deleted it meanwhile
        return fork

    async def delete(self, tenant: str, session_id: str) -> None:
        """Remove a session, and what it alone holds in every tier. Raises NotFound and Conflict.

        The rows go last: whatever fails before, the same request may be sent again.
        """
        async with self.alone(tenant, session_id) as session:
            self._services.require_engine()
            await self._services.engine.unpin(session_id)
            await self._forget(session)
            if not await self.store.delete(tenant, session_id):
                raise NotFound(_UNKNOWN, param="session_id")

    @property
    def _limit(self) -> int:
        return self._services.engine.info.max_request_tokens

    def _require_room(self, num_bytes: int, messages: Sequence[NewMessage]) -> None:
        """Raises InvalidRequest when a session of `num_bytes` cannot take the messages, too."""
        total = num_bytes + sum(len(message.json) for message in messages)
        limit = self._settings.max_session_bytes
        if total > limit:
            raise InvalidRequest(
                f"The session would have {total:,} bytes of messages, and conversation.max_session_bytes "
                f"allows {limit:,}. Send less, or go on in a fork of its beginning (up_to) or a new session.",
                param="messages",
            )

    async def _require_place(self, tenant: str) -> None:
        """Raises Conflict when the tenant has as many sessions as it may have."""
        limit = self._settings.max_sessions
        if await self.store.num_sessions(tenant) >= limit:
            raise Conflict(
                f"There are {limit:,} sessions, as many as conversation.max_sessions allows; "
                "delete some that are not needed.",
                code="too_many_sessions",
            )

    async def _forget(self, session: Session) -> None:
        """Drop from every tier what is this session's, and not also another's of the same namespace."""
        if not session.num_turns and session.parent_id is None:
            # nothing was computed for it; what its messages begin with may be others'
            return
        history = History.of(await self.store.history(session.tenant, session.id))
        num_shared = await self.store.num_shared_messages(session)
        ids, kept = [
            await self._histories.known_ids(part, session.namespace, self._limit)
            for part in (history, history.first(num_shared))
        ]
        if ids:
            num_kept = num_common(ids, kept)
            await self._services.engine.forget(session.namespace, ids.tobytes(), num_kept)


def _fresh_id() -> str:
    return f"sess_{secrets.token_hex(12)}"
