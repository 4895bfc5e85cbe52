"""The line before a session: one at a time, in order, for a bounded time, and nothing left behind."""

import asyncio

import pytest

from gateway.errors import Conflict
from gateway.sessions.line import SessionLine


async def test_one_works_and_the_others_follow_in_order() -> None:
    line = SessionLine()
    order: list[int] = []

    async def work(number: int) -> None:
        with await line.enter("s", wait_seconds=5):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*[work(number) for number in range(4)])

    assert order == [0, 0, 1, 1, 2, 2, 3, 3]
    assert line.num_busy == 0


async def test_sessions_do_not_wait_for_each_other() -> None:
    line = SessionLine()

    with await line.enter("one", wait_seconds=1), await line.enter("other", wait_seconds=0.01):
        assert line.num_busy == 2

    assert line.num_busy == 0


async def test_who_waits_too_long_is_told_and_forgotten() -> None:
    line = SessionLine()
    first = await line.enter("s", wait_seconds=1)

    with pytest.raises(Conflict) as refusal:
        await line.enter("s", wait_seconds=0.01)
    first.release()

    assert refusal.value.code == "session_busy"
    assert line.num_busy == 0


async def test_who_gives_up_waiting_is_forgotten() -> None:
    line = SessionLine()
    first = await line.enter("s", wait_seconds=1)
    waiting = asyncio.create_task(line.enter("s", wait_seconds=5))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.wait((waiting,))
    first.release()

    assert line.num_busy == 0


async def test_a_session_is_held_until_work_on_it_is_done() -> None:
    line = SessionLine()
    may_end = asyncio.Event()
    is_done: list[bool] = []

    async def work() -> None:
        await may_end.wait()
        is_done.append(True)
        raise Conflict("x")

    hold = await line.enter("s", wait_seconds=1)
    working = asyncio.create_task(work())
    hold.release_after(working)
    hold.release()
    next_one = asyncio.create_task(line.enter("s", wait_seconds=5))
    await asyncio.sleep(0.01)

    assert not next_one.done()
    may_end.set()
    with await next_one:
        assert is_done == [True]
    assert line.num_busy == 0
    assert isinstance(working.exception(), Conflict)
