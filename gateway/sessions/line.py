"""Who may work on a session now: one at a time, the others wait in line for a bounded time.

It owns one lock for each session that anybody works on, and none for the rest. It knows this process only;
several gateways over one database are told apart by the session's counter of turns.
"""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType

from gateway.errors import Conflict

__all__ = ["Hold", "SessionLine"]


@dataclass(slots=True, eq=False)
class _Place:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_users: int = 0  # who holds it, and who waits


class Hold:
    """The right to work on one session, until it is left as a `with` block or released."""

    def __init__(self, line: "SessionLine", session_id: str) -> None:
        self._line = line
        self._session_id = session_id
        self._is_over = False

    def __enter__(self) -> "Hold":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let the next one in."""
        if not self._is_over:
            self._is_over = True
            self._line._leave(self._session_id)

    def release_after(self, work: "asyncio.Task[None]") -> None:
        """Let the next one in as soon as this work is done, however it ends; `release` adds nothing then."""
        if not self._is_over:
            self._is_over = True
            self._line._leave_after(self._session_id, work)


class SessionLine:
    """The sessions that are being worked on."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._work: set[asyncio.Task[None]] = set()  # sessions are held until it is done

    @property
    def num_busy(self) -> int:
        """Sessions that somebody works on or waits for."""
        return len(self._places)

    async def enter(self, session_id: str, *, wait_seconds: float) -> Hold:
        """Wait for everybody before. Raises Conflict, `session_busy`, when that takes too long."""
        place = self._places.setdefault(session_id, _Place())
        place.num_users += 1
        try:
            async with asyncio.timeout(wait_seconds):
                await place.lock.acquire()
        except BaseException as error:
            self._forget(session_id, place)
            if isinstance(error, TimeoutError):
                raise Conflict(
                    f"Another request has worked on this session for {wait_seconds:g} seconds; "
                    "send this one again when it has ended.",
                    param="session_id",
                    code="session_busy",
                ) from None
            raise
        return Hold(self, session_id)

    def _leave_after(self, session_id: str, work: "asyncio.Task[None]") -> None:
        self._work.add(work)  # a loop alone does not keep its tasks
        work.add_done_callback(self._work.discard)
        work.add_done_callback(lambda _work: self._leave(session_id))

    def _leave(self, session_id: str) -> None:
        place = self._places[session_id]
        place.lock.release()
        self._forget(session_id, place)

    def _forget(self, session_id: str, place: _Place) -> None:
        place.num_users -= 1
        if not place.num_users:
            del self._places[session_id]
