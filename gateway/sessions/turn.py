"""One turn of a session, from the history that it continues to the rows that it adds.

Until it is finished nothing of it is stored; then all of it is, in one transaction, before the client is told
that the answer has ended.
"""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import Counter
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import Conflict, from_store
from gateway.sessions.line import Hold
from gateway.store.sessions import NewMessage, Session, SessionStore
from gateway.wire.messages import Message
from gateway.wire.stored import as_json

__all__ = ["Turn"]


@dataclass(slots=True, eq=False, kw_only=True)
class Turn:
    """A session that is held for one answer. Released by whoever began it."""

    store: SessionStore
    turns: Counter
    hold: Hold
    session: Session
    history: list[Message]
    new_messages: Sequence[dict[str, Any]]  # as the client sent them

    async def finish(self, text: str, token_ids: Sequence[int]) -> None:
        """Store the new messages and the answer. What has begun is done even if the waiting is cancelled.

        Raises Conflict, and StoreUnavailable or InternalError when the database fails: then nothing is kept.
        """
        await self.hold.finish(asyncio.ensure_future(self._store(text, token_ids)))

    async def _store(self, text: str, token_ids: Sequence[int]) -> None:
        answer = NewMessage(
            json=as_json({"role": "assistant", "content": text}), token_ids=array("i", token_ids).tobytes()
        )
        messages = [*[NewMessage(json=as_json(message)) for message in self.new_messages], answer]
        try:
            is_stored = await self.store.append(self.session, messages)
        except SQLAlchemyError as error:
            structlog.get_logger().error(
                "session.not_stored", session=self.session.id, reason=type(error).__name__
            )
            raise from_store(error) from None
        if not is_stored:
            raise Conflict(
                "This session was changed or deleted by somebody else while the answer grew; "
                "nothing of this turn was kept. Send it again.",
                param="session_id",
            )
        self.turns.inc()
