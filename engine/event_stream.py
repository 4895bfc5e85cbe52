"""The events of requests that were submitted together, as a client receives them.

It owns which choices may still have news, and what has arrived and was not read. What arrives is kept from
the moment of submitting on, so nothing that follows an acceptance closely is lost. Ending it early, by
`close` or by cancelling who reads it, aborts what still runs.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from engine.errors import EngineError, EngineStopping, QueueFull, RequestRefused, WaitedTooLong
from engine.messages import Abort, Accepted, Refused, Submit, TokenEvent

__all__ = ["EventStream", "Events", "to_error"]

_RETRY_SECONDS = 1.0  # where a refusal names no time


class Events(Protocol):
    """What `engine.client.Engine.start` answers with: an asynchronous iterator that can be closed."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> TokenEvent:
        """The next event of any of the requests. Ends when every choice has had its finish_reason; raises
        EngineError when a request fails, and then all of them are over.
        """
        ...

    def close(self) -> None:
        """Abort what still runs. Closing twice, or at the end, is harmless."""
        ...


class EventStream:
    """Requests on one connection. `send` tells the engine, and `forget` that no more events are wanted."""

    def __init__(
        self,
        submits: Sequence[Submit],
        *,
        send: Callable[[Submit | Abort], None],
        forget: Callable[[str], None],
    ) -> None:
        self._submits = submits
        self._send = send
        self._forget = forget
        self._remaining = {
            (each.request_id, choice) for each in submits for choice in range(each.num_choices)
        }
        self._arrived: asyncio.Queue[TokenEvent | Accepted | EngineError | None] = asyncio.Queue()
        self._early: list[TokenEvent] = []  # of requests that were accepted before others
        self._is_closed = False

    def deliver(self, item: TokenEvent | Accepted | EngineError) -> None:
        """Take what has arrived for one of the requests."""
        self._arrived.put_nowait(item)

    def drop(self, request_id: str, choice: int) -> None:
        """Expect no more of one choice."""
        self._remaining.discard((request_id, choice))
        self._arrived.put_nowait(None)  # whoever waits looks again

    async def submit(self) -> None:
        """Send all, and wait until all are accepted. If one is refused the others are aborted, and its error
        is raised.
        """
        try:
            for each in self._submits:
                self._send(each)
            waiting = {each.request_id for each in self._submits}
            while waiting:
                item = await self._take()
                if isinstance(item, Accepted):
                    waiting.discard(item.request_id)
                elif item is not None:
                    self._early.append(item)
        except BaseException:
            self.close()
            raise
        self._early.reverse()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        try:
            while self._remaining and not self._is_closed:
                item = self._early.pop() if self._early else await self._take()
                if not isinstance(item, TokenEvent) or (item.request_id, item.choice) not in self._remaining:
                    continue
                if item.finish_reason is not None:
                    self._remaining.discard((item.request_id, item.choice))
                return item
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopAsyncIteration

    def close(self) -> None:
        """See Events."""
        if self._is_closed:
            return
        self._is_closed = True
        for each in self._submits:
            self._forget(each.request_id)
            # Aborting what has ended is harmless, and tells the engine that nobody listens any more.
            self._send(Abort(request_id=each.request_id))

    async def _take(self) -> TokenEvent | Accepted | None:
        item = await self._arrived.get()
        if isinstance(item, EngineError):
            raise item
        return item


def to_error(refused: Refused) -> EngineError:
    """What is raised for a refusal."""
    retry_after = _RETRY_SECONDS if refused.retry_after is None else refused.retry_after
    match refused.kind:
        case "refused":
            return RequestRefused(refused.message)
        case "stopping":
            return EngineStopping(refused.message)
        case "queue_full":
            return QueueFull(refused.message, retry_after)
        case "waited_too_long":
            return WaitedTooLong(refused.message, retry_after)
        case _:
            return EngineError(refused.message)
