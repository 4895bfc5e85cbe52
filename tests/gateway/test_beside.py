"""Work beside the server: it ends with it, and it ends it."""

import asyncio

import pytest

from engine.errors import EngineError
from gateway.beside import WorkFailed, beside, to_its_end


async def fail(error: Exception) -> None:
    raise error


async def test_work_is_cancelled_at_the_end() -> None:
    stopped = asyncio.Event()
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with beside(work(), stopped.set):
        await asyncio.sleep(0)

    assert ended == [True]
    assert not stopped.is_set()


@pytest.mark.parametrize(
    ("error", "told"), [(KeyError("x"), WorkFailed), (EngineError("no memory"), EngineError)]
)
async def test_work_that_fails_ends_the_server_at_once_and_says_so(
    error: Exception, told: type[Exception]
) -> None:
    stopped = asyncio.Event()

    with pytest.raises(told, match=r"KeyError: 'x'|no memory"):
        async with asyncio.timeout(5), beside(fail(error), stopped.set):
            await stopped.wait()
    assert stopped.is_set()


async def test_what_is_not_to_be_cut_off_ends_before_its_cancellation_is_raised() -> None:
    may_end = asyncio.Event()
    order: list[str] = []

    async def work() -> str:
        await may_end.wait()
        order.append("done")
        return "x"

    waiting = asyncio.create_task(to_its_end(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    order.append("cancelled")

    assert order == ["done", "cancelled"]
    assert await to_its_end(work()) == "x"
