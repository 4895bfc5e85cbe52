"""Work that runs beside the server for as long as it serves. Work that fails ends the server, and says so."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from engine.errors import EngineError

__all__ = ["WorkFailed", "beside", "to_its_end"]

T = TypeVar("T")


class WorkFailed(Exception):
    """A part of the server failed for good; the message says how."""


@asynccontextmanager
async def beside(work: Coroutine[None, None, None], stop: Callable[[], None]) -> AsyncIterator[None]:
    """Do work beside the block and cancel it at its end. Calls `stop` as soon as the work fails.

    Raises EngineError where the work did, and WorkFailed for any other failure of it.
    """

    def look(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            stop()

    task = asyncio.create_task(work)
    task.add_done_callback(look)
    try:
        yield
    finally:
        task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await task
        except EngineError:
            raise
        except Exception as error:
            raise WorkFailed(f"a part of the server failed: {type(error).__name__}: {error}") from error


async def to_its_end(work: Coroutine[None, None, T]) -> T:
    """Do work that is not to be cut off, such as a query: a cancellation is raised when it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
