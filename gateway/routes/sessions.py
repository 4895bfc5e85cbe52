"""/v1/sessions: stored conversations, and where their keys and values lie.

Every route asks as the key's tenant; what belongs to another one does not exist.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from engine.cache_messages import Moved
from engine.errors import EngineError
from gateway.auth import principal_of
from gateway.errors import Conflict, GatewayError
from gateway.paging import UnknownCursor, list_of, parse_paging
from gateway.record import record_of
from gateway.routes.answers import json_response
from gateway.services import Services
from gateway.sessions.service import Sessions
from gateway.store.sessions import Session
from gateway.wire.body import require_json
from gateway.wire.cache_answers import CacheUse, MoveAnswer
from gateway.wire.session_answers import Deleted, MessageAnswer, PinAnswer, SessionAnswer, message_id
from gateway.wire.session_requests import ForkSession, NewSession, PinSession, parse_body
from gateway.wire.stored import raw_messages

__all__ = ["SessionsRoute"]

_LOCATE_SECONDS = 2.0

Move = Callable[[bytes, bytes], Awaitable[Moved]]


class SessionsRoute:
    """The endpoints, with their collaborators."""

    def __init__(self, services: Services, sessions: Sessions) -> None:
        self.services = services
        self.sessions = sessions

    async def create(self, request: Request) -> Response:
        """A new session."""
        tenant = _tenant(request)
        require_json(request.headers.get("content-type", ""))
        asked, fields = parse_body(await request.body(), NewSession)
        if asked.model is not None:
            self.services.catalog.require(asked.model)
        session = await self.sessions.create(
            tenant, salt=asked.cache_salt, metadata=asked.metadata, messages=raw_messages(fields)
        )
        return json_response(SessionAnswer.of(session))

    async def list(self, request: Request) -> Response:
        """A page of the tenant's sessions."""
        paging = parse_paging(request.query_params)
        page = await self.sessions.store.page(_tenant(request), paging)
        answers = [SessionAnswer.of(session) for session in page.items]
        ids = [answer.id for answer in answers]
        return json_response(list_of(answers, ids, has_more=page.has_more))

    async def retrieve(self, request: Request) -> Response:
        """One session, and where it lies."""
        session = await self.sessions.get(_tenant(request), _id(request))
        return json_response(SessionAnswer.of(session, await self._locate(session)))

    async def messages(self, request: Request) -> Response:
        """A page of a session's messages, oldest first unless asked otherwise."""
        paging = parse_paging(request.query_params, order="asc")
        session = await self.sessions.get(_tenant(request), _id(request))
        page = await self.sessions.store.messages(
            session.tenant,
            session.id,
            after=None if paging.after is None else _position(session, paging.after),
            limit=paging.limit,
            descending=paging.order == "desc",
        )
        answers = [MessageAnswer.of(session.id, message) for message in page.items]
        ids = [answer.id for answer in answers]
        return json_response(list_of(answers, ids, has_more=page.has_more))

    async def park(self, request: Request) -> Response:
        """Write a session to the coldest tier, and let it leave the device."""
        return await self._move(request, "session.park", self.services.engine.park)

    async def resume(self, request: Request) -> Response:
        """Bring a session back to the device ahead of its next turn."""
        return await self._move(request, "session.resume", self.services.engine.prefetch)

    async def fork(self, request: Request) -> Response:
        """A new session with a session's history, or the beginning of it."""
        require_json(request.headers.get("content-type", ""))
        asked, _ = parse_body(await request.body(), ForkSession)
        fork = await self.sessions.fork(
            _tenant(request), _id(request), up_to=asked.up_to, metadata=asked.metadata
        )
        return json_response(SessionAnswer.of(fork))

    async def pin(self, request: Request) -> Response:
        """Keep a session on the device for a time."""
        require_json(request.headers.get("content-type", ""))
        asked, _ = parse_body(await request.body(), PinSession)
        async with self.sessions.alone(_tenant(request), _id(request)) as session:
            self.services.require_engine()
            ids = await self.sessions.read(session)
            seconds = asked.ttl_seconds
            pinned = await self.services.engine.pin(session.id, session.namespace, ids, seconds)
        if pinned.num_tokens == 0 and pinned.message is not None:
            raise Conflict(f"The session could not be pinned: {pinned.message}.", code="pin_refused")
        return json_response(
            PinAnswer(
                id=session.id,
                pinned_tokens=pinned.num_tokens,
                pinned_blocks=pinned.num_blocks,
                expires_at=int(time.time() + seconds),
            )
        )

    async def unpin(self, request: Request) -> Response:
        """End a session's pin, if it has one."""
        session = await self.sessions.get(_tenant(request), _id(request))
        self.services.require_engine()
        await self.services.engine.unpin(session.id)
        return json_response(Deleted(id=session.id, object="session.pin.deleted"))

    async def delete(self, request: Request) -> Response:
        """Remove a session and what it alone holds."""
        session_id = _id(request)
        await self.sessions.delete(_tenant(request), session_id)
        return json_response(Deleted(id=session_id, object="session.deleted"))

    async def _move(
        self, request: Request, kind: Literal["session.park", "session.resume"], move: Move
    ) -> Response:
        async with self.sessions.alone(_tenant(request), _id(request)) as session:
            self.services.require_engine()
            ids = await self.sessions.read(session)
            moved = await move(session.namespace, ids)
        return json_response(MoveAnswer.of(kind, session.id, moved))

    async def _locate(self, session: Session) -> CacheUse | None:
        """Where a session lies; None when nobody can say now."""
        engine = self.services.engine
        if not engine.is_ready:
            return None
        try:
            ids = await self.sessions.read(session)
            async with asyncio.timeout(_LOCATE_SECONDS):
                return CacheUse.of(await engine.locate(session.namespace, ids))
        except (EngineError, GatewayError, TimeoutError):
            return None


def _tenant(request: Request) -> str:
    tenant = principal_of(request).tenant
    record_of(request).tenant = tenant
    return tenant


def _id(request: Request) -> str:
    return str(request.path_params["session_id"])


def _position(session: Session, cursor: str) -> int:
    """The position that a message's id names. Raises UnknownCursor."""
    digits = cursor.removeprefix(f"{session.id}-")
    is_position = digits.isascii() and digits.isdecimal() and len(digits) < 10
    if not is_position or cursor != message_id(session.id, int(digits)):
        raise UnknownCursor
    if int(digits) >= session.num_messages:
        raise UnknownCursor
    return int(digits)
