"""The events of requests that were submitted together, as a client receives them.

It owns which choices may still have news, and what has arrived and was not read. What arrives is kept from
the moment of submitting on, so nothing that follows an acceptance closely is lost. Ending it early, by
`close` or by cancelling who reads it, aborts what still runs.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from engine.errors import (
    EngineError,
    EngineStopping,
    GrammarRefused,
    QueueFull,
    RequestRefused,
    WaitedTooLong,
)
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

    def arrived(self, most: int) -> list[TokenEvent]:
        """Up to so many further events that are here already, in order; maybe none. Never waits or raises:
        what is no event is left to `__anext__`.
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
        self._arrived: deque[TokenEvent | Accepted | EngineError | None] = deque()
        self._num_open = {each.request_id: each.num_choices for each in submits}  # choices without their end
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None  # of the one task that reads

    def deliver(self, item: TokenEvent | Accepted | EngineError | None) -> None:
        """Take what has arrived for one of the requests. Wakes who waits once, however much follows."""
        self._arrived.append(item)
        self._wake()

    def drop(self, request_id: str, choice: int) -> None:
        """Expect no more of one choice."""
        self._remaining.discard((request_id, choice))
        self.deliver(None)  # whoever waits looks again

    async def submit(self) -> None:
        """Send all, and wait until all are accepted. If one is refused the others are aborted, and its error
        is raised.
        """
        try:
            for each in self._submits:
                self._send(each)
            waiting = {each.request_id for each in self._submits}
            early: list[TokenEvent] = []  # of requests that were accepted before others
            while waiting:
                item = await self._take()
                if isinstance(item, Accepted):
                    waiting.discard(item.request_id)
                elif item is not None:
                    early.append(item)
        except BaseException:
            self.close()
            raise
        self._arrived.extendleft(reversed(early))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        try:
            while self._remaining and not self._is_closed:
                item = await self._take()
                if isinstance(item, TokenEvent) and self._is_wanted(item):
                    return item
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopAsyncIteration

    def arrived(self, most: int) -> list[TokenEvent]:
        """See Events."""
        events: list[TokenEvent] = []
        while len(events) < most and self._arrived and isinstance(item := self._arrived[0], TokenEvent):
            self._arrived.popleft()
            if self._is_wanted(item):
                events.append(item)
        return events

    def close(self) -> None:
        """See Events."""
        if self._is_closed:
            return
        self._is_closed = True
        for each in self._submits:
            self._forget(each.request_id)
            # The engine knows of the ends that it told. A choice that was aborted alone has none.
            if self._num_open[each.request_id]:
                self._send(Abort(request_id=each.request_id))

    def _is_wanted(self, event: TokenEvent) -> bool:
        """Whether it is news of a choice that may still have some. Mutates: after its last there is none."""
        key = event.request_id, event.choice
        if key not in self._remaining:
            return False
        if event.finish_reason is not None:
            self._remaining.discard(key)
            self._num_open[event.request_id] -= 1
        return True

    async def _take(self) -> TokenEvent | Accepted | None:
        while not self._arrived:
            self._waiter = self._loop.create_future()
            await self._waiter
        item = self._arrived.popleft()
        if isinstance(item, EngineError):
            raise item
        return item

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def to_error(refused: Refused) -> EngineError:
    """What is raised for a refusal."""
    retry_after = _RETRY_SECONDS if refused.retry_after is None else refused.retry_after
    match refused.kind:
        case "refused":
            return RequestRefused(refused.message)
        case "grammar":
            return GrammarRefused(refused.message)
        case "stopping":
            return EngineStopping(refused.message)
        case "queue_full":
            return QueueFull(refused.message, retry_after)
        case "waited_too_long":
            return WaitedTooLong(refused.message, retry_after)
        case _:
            return EngineError(refused.message)
