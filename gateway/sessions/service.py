"""What may be done with sessions: kept, told, continued, forked, deleted.

It owns the order of things where rows, ids and the engine meet. While a session is changed, nobody else of
this process works on it; the store's counter of turns holds the rest off.
"""

import re
import secrets
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gateway.errors import EngineUnavailable, InvalidRequest, NotFound
from gateway.rendering import ChatRenderer, num_common
from gateway.services import Services
from gateway.sessions.history import Histories
from gateway.sessions.line import SessionLine
from gateway.sessions.turn import Turn
from gateway.settings import ConversationSettings
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
        self._line = SessionLine()

    async def create(
        self,
        tenant: str,
        *,
        salt: str | None,
        metadata: dict[str, str] | None,
        messages: Sequence[dict[str, Any]],
    ) -> Session:
        """A new session, which begins with messages as the client sent them."""
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
            root_id=session_id,
            metadata=metadata or {},
            num_turns=0,
            num_messages=len(messages),
        )
        await self.store.create(session, [NewMessage(json=as_json(message)) for message in messages])
        return session

    async def get(self, tenant: str, session_id: str) -> Session:
        """Raises NotFound, the same for a session of somebody else."""
        # only what could be an id is looked up: databases differ in what strings they take
        session = await self.store.get(tenant, session_id) if _ID.fullmatch(session_id) else None
        if session is None:
            raise NotFound(_UNKNOWN, param="session_id")
        return session

    async def read(self, session: Session) -> bytes:
        """The ids that stand for a session, packed int32. Raises InvalidRequest when no template takes it."""
        history = await self.store.history(session.tenant, session.id)
        return await self._histories.ids(session, history)

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
            history = await self.store.history(tenant, session_id)
            messages = await self._histories.messages(session, history)
        except BaseException:
            hold.release()
            raise
        return Turn(
            store=self.store,
            turns=self._services.metrics.session_turns,
            hold=hold,
            session=replace(session, num_messages=len(history)),
            history=messages,
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
            await self.store.fork(source, fork, num_messages=num_messages)
        return fork

    async def delete(self, tenant: str, session_id: str) -> None:
        """Remove a session, and what it alone holds in every tier. Raises NotFound and Conflict.

        The rows go last: whatever fails before, the same request may be sent again.
        """
        async with self.alone(tenant, session_id) as session:
            self.require_engine()
            await self._services.engine.unpin(session_id)
            await self._forget(session)
            if not await self.store.delete(tenant, session_id):
                raise NotFound(_UNKNOWN, param="session_id")

    def require_engine(self) -> None:
        """Raises EngineUnavailable while there is none."""
        if not self._services.engine.is_ready:
            raise EngineUnavailable("The model is not ready yet. Send the request again in a moment.")

    async def _forget(self, session: Session) -> None:
        """Drop from every tier what is this session's, and not also another's of the same line of forks."""
        history = await self.store.history(session.tenant, session.id)
        num_shared = await self.store.num_shared_messages(session)
        try:
            ids = await self._histories.ids(session, history)
            kept = await self._histories.ids(session, history[:num_shared])
        except InvalidRequest:
            return  # what no template takes has never been computed
        if ids:
            num_kept = num_common(array("i", ids), array("i", kept))
            await self._services.engine.forget(session.namespace, ids, num_kept)


def _fresh_id() -> str:
    return f"sess_{secrets.token_hex(12)}"
