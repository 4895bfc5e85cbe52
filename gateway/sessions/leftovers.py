"""What a turn computed that is no part of what its session keeps, and how it is forgotten.

A turn that is not stored leaves the keys and values of its prompt and of what was drawn; an answer that was
cut, or that the template writes otherwise, leaves the rest of what was drawn. Nobody's stored ids name those
paths, so they are named here, once, while the session is still held.
"""

import asyncio
from array import array
from dataclasses import dataclass

import structlog

from engine.client import Engine
from engine.errors import EngineError
from gateway.lifecycle import Lifecycle
from gateway.rendering import num_common
from gateway.sessions.history import Histories, History

__all__ = ["Leftovers"]

_FORGET_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Forgets them, in one engine."""

    engine: Engine
    histories: Histories
    lifecycle: Lifecycle

    async def forget(self, session_id: str, namespace: bytes, path: "array[int]", kept: History) -> None:
        """Drop what was computed on `path` (token ids) beyond what `kept` begins with. Failure is logged."""
        try:
            # the server does not end before it is done: what is on the disk would come back with it
            with self.lifecycle.answering():
                limit = self.engine.info.max_request_tokens
                known = await self.histories.known_ids(kept, namespace, limit)
                num_kept = num_common(path, known)
                if num_kept < len(path):
                    async with asyncio.timeout(_FORGET_SECONDS):
                        await self.engine.forget(namespace, path.tobytes(), num_kept)
        except (EngineError, TimeoutError) as error:
            structlog.get_logger().warning(
                "session.not_forgotten", session=session_id, reason=type(error).__name__
            )
