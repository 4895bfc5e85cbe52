"""One turn of a session, from the history that it continues to the rows that it adds.

Until it is finished nothing of it is stored; then all of it is, in one transaction, before the client is told
that the answer has ended. However it ends, what it computed and no stored history begins with is forgotten,
and only then is the session let go.
"""

import asyncio
from array import array
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import Counter

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.errors import Conflict, GatewayError
from gateway.sessions.history import History
from gateway.sessions.leftovers import Leftovers
from gateway.sessions.line import Hold
from gateway.store.sessions import NewMessage, Session, SessionStore
from gateway.wire.messages import Message
from gateway.wire.stored import as_json, messages_of, with_briefing

__all__ = ["Turn"]


@dataclass(slots=True, eq=False, kw_only=True)
class Turn:
    """A session that is held for one answer. Whoever began it releases it if no answer was begun."""

    store: SessionStore
    turns: Counter
    hold: Hold
    leftovers: Leftovers
    session: Session
    history: History
    new_messages: Sequence[dict[str, Any]]  # as they are stored
    briefing: Briefing = NOTHING  # of this turn
    _is_over: bool = False

    @property
    def messages(self) -> list[Message]:
        """All that the answer is asked for."""
        return [*self.history.messages, *messages_of(self.new_messages)]

    async def finish(self, prompt: "array[int]", answer: Mapping[str, Any], token_ids: Sequence[int]) -> None:
        """Store the new messages and the answer. What has begun is done even if the waiting is cancelled.

        Raises Conflict, and StoreUnavailable or InternalError when the database fails: then nothing is kept.
        """
        drawn = array("i", token_ids)
        storing = asyncio.ensure_future(self._store(answer, drawn))
        self._end(self._settle(storing, prompt + drawn, answer, drawn))
        await asyncio.shield(storing)

    def abandon(self, prompt: "array[int]", token_ids: Sequence[int]) -> None:
        """End it without an answer, unless it is finished; never waits."""
        if not self._is_over:
            self._end(self._forget(prompt + array("i", token_ids), self.history))

    def _end(self, work: Coroutine[None, None, None]) -> None:
        self._is_over = True
        self.hold.release_after(asyncio.create_task(work))

    async def _settle(
        self,
        storing: "asyncio.Future[None]",
        path: "array[int]",
        answer: Mapping[str, Any],
        drawn: "array[int]",
    ) -> None:
        await asyncio.wait((storing,))
        kept = self.history
        if not storing.cancelled() and storing.exception() is None:
            new = messages_of([*self.new_messages, answer])
            kept = kept.followed_by(new, drawn, self.briefing)
        await self._forget(path, kept)

    async def _forget(self, path: "array[int]", kept: History) -> None:
        await self.leftovers.forget(self.session.id, self.session.namespace, path, kept)

    async def _store(self, answer: Mapping[str, Any], drawn: "array[int]") -> None:
        stored = NewMessage(json=as_json(with_briefing(answer, self.briefing)), token_ids=drawn.tobytes())
        messages = [*[NewMessage(json=as_json(message)) for message in self.new_messages], stored]
        try:
            is_stored = await self.store.append(self.session, messages)
        except GatewayError as error:
            structlog.get_logger().error(
                "session.not_stored", session=self.session.id, reason=type(error).__name__
            )
            raise
        if not is_stored:
            raise Conflict(
                "This session was changed or deleted by somebody else while the answer grew; "
                "nothing of this turn was kept. Send it again.",
                param="session_id",
            )
        self.turns.inc()
