"""A client's side of requests that were started together: acceptance, order, ends. No engine, no socket."""

import asyncio
import contextlib

import pytest

from engine.errors import EngineDied, EngineError, EngineStopping, QueueFull, RequestRefused, WaitedTooLong
from engine.event_stream import EventStream, to_error
from engine.messages import Abort, Accepted, FinishReason, Refused, Submit, TokenEvent
from engine.sequence import SamplingParams

pytestmark = pytest.mark.anyio


class Wire:
    """What was sent to the engine, and which requests nobody listens to any more."""

    def __init__(self, *submits: Submit) -> None:
        self.sent: list[Submit | Abort] = []
        self.forgotten: list[str] = []
        self.stream = EventStream(submits, send=self.sent.append, forget=self.forgotten.append)

    @property
    def aborted(self) -> list[str]:
        return [message.request_id for message in self.sent if isinstance(message, Abort)]


def submit(request_id: str, choices: int = 1) -> Submit:
    return Submit(
        request_id=request_id,
        prompt=b"\0\0\0\0",
        sampling=SamplingParams(max_tokens=3),
        namespace=b"",
        num_choices=choices,
    )


def event(
    request_id: str, token: int, *, choice: int = 0, finish_reason: FinishReason | None = None
) -> TokenEvent:
    return TokenEvent(request_id=request_id, choice=choice, token_ids=[token], finish_reason=finish_reason)


async def started(*submits: Submit) -> Wire:
    wire = Wire(*submits)
    for each in submits:
        wire.stream.deliver(Accepted(each.request_id))
    await wire.stream.submit()
    return wire


async def test_events_that_arrive_with_the_acceptance_are_kept() -> None:
    wire = Wire(submit("a"), submit("b"))
    told = [event("a", 1), event("a", 2), event("a", 3, finish_reason="stop")]
    for item in (Accepted("a"), *told, Accepted("b"), event("b", 4, finish_reason="length")):
        wire.stream.deliver(item)

    await wire.stream.submit()

    assert [each.token_ids async for each in wire.stream] == [[1], [2], [3], [4]]


async def test_who_has_heard_every_end_is_forgotten_and_nothing_is_aborted() -> None:
    wire = await started(submit("a", choices=2), submit("b"))
    for item in (
        event("a", 1, finish_reason="stop"),
        event("b", 2, finish_reason="length"),
        event("a", 3, choice=1, finish_reason="stop"),
    ):
        wire.stream.deliver(item)

    assert [each.token_ids async for each in wire.stream] == [[1], [2], [3]]
    assert wire.forgotten == ["a", "b"]
    assert wire.aborted == []


async def test_of_several_requests_only_those_that_have_not_ended_are_aborted() -> None:
    wire = await started(submit("a"), submit("b"))
    wire.stream.deliver(event("a", 1, finish_reason="stop"))
    await anext(wire.stream)

    wire.stream.close()

    assert wire.forgotten == ["a", "b"]
    assert wire.aborted == ["b"]


async def test_what_arrives_together_wakes_its_reader_once() -> None:
    wire = await started(submit("a"))

    async def read() -> list[list[int]]:
        return [
            [each.token_ids[0] for each in (first, *wire.stream.arrived(9))] async for first in wire.stream
        ]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    for token in (1, 2, 3):
        wire.stream.deliver(event("a", token))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    wire.stream.deliver(event("a", 4, finish_reason="stop"))

    assert await reading == [[1, 2, 3], [4]]


async def test_no_more_is_handed_out_at_once_than_was_asked_for() -> None:
    wire = await started(submit("a"))
    for token in range(5):
        wire.stream.deliver(event("a", token))

    assert [each.token_ids[0] for each in wire.stream.arrived(2)] == [0, 1]
    assert [each.token_ids[0] for each in wire.stream.arrived(9)] == [2, 3, 4]
    assert wire.stream.arrived(9) == []


async def test_an_error_behind_events_is_raised_when_they_have_been_read() -> None:
    wire = await started(submit("a"))
    wire.stream.deliver(event("a", 1))
    wire.stream.deliver(EngineDied("gone"))
    wire.stream.deliver(event("a", 2))

    assert [each.token_ids for each in wire.stream.arrived(9)] == [[1]]
    assert wire.stream.arrived(9) == []
    with pytest.raises(EngineDied):
        await anext(wire.stream)


async def test_of_a_dropped_choice_nothing_is_handed_out_at_once_either() -> None:
    wire = await started(submit("a", choices=2))
    for choice in (0, 1, 0, 1):
        wire.stream.deliver(event("a", 7, choice=choice))

    wire.stream.drop("a", 0)

    assert [each.choice for each in wire.stream.arrived(9)] == [1, 1]


async def test_nothing_is_told_before_all_are_accepted() -> None:
    wire = Wire(submit("a"), submit("b"))
    waiting = asyncio.create_task(wire.stream.submit())
    wire.stream.deliver(Accepted("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not waiting.done()
    wire.stream.deliver(Accepted("b"))
    await waiting
    assert wire.aborted == []


async def test_if_one_is_refused_all_are_aborted_and_its_error_is_raised() -> None:
    wire = Wire(submit("a"), submit("b"))
    for item in (Accepted("a"), event("a", 1), QueueFull("full", 3.0)):
        wire.stream.deliver(item)

    with pytest.raises(QueueFull):
        await wire.stream.submit()

    assert wire.aborted == wire.forgotten == ["a", "b"]


async def test_who_is_cancelled_while_waiting_to_be_accepted_aborts() -> None:
    wire = Wire(submit("a"))
    waiting = asyncio.create_task(wire.stream.submit())
    await asyncio.sleep(0)

    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting

    assert wire.aborted == wire.forgotten == ["a"]


async def test_who_is_cancelled_while_waiting_for_an_event_aborts() -> None:
    wire = await started(submit("a"))
    waiting = asyncio.create_task(anext(wire.stream))
    await asyncio.sleep(0)

    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting

    assert wire.aborted == ["a"]


async def test_closing_before_the_first_event_aborts_once() -> None:
    wire = await started(submit("a", choices=2))

    wire.stream.close()
    wire.stream.close()

    assert wire.aborted == ["a"]
    assert [each async for each in wire.stream] == []


async def test_an_error_ends_all_and_aborts_the_rest() -> None:
    wire = await started(submit("a"), submit("b"))
    wire.stream.deliver(event("a", 1))
    wire.stream.deliver(WaitedTooLong("late", 5.0))
    told = []

    with pytest.raises(WaitedTooLong):
        told += [each.request_id async for each in wire.stream]

    assert wire.aborted == ["a", "b"]


async def test_a_choice_that_was_dropped_has_no_more_events_and_others_go_on() -> None:
    wire = await started(submit("a", choices=2))
    for item in (event("a", 1), event("a", 2, choice=1), event("a", 3, choice=1, finish_reason="stop")):
        wire.stream.deliver(item)

    told = []
    async for each in wire.stream:
        told.append((each.choice, each.token_ids[0]))
        wire.stream.drop("a", 0)

    assert told == [(0, 1), (1, 2), (1, 3)]
    assert wire.aborted == ["a"], "the engine told no end of the one that was dropped"


async def test_dropping_the_last_choice_ends_the_events_at_once() -> None:
    wire = await started(submit("a"))
    waiting = asyncio.create_task(anext(wire.stream, None))
    await asyncio.sleep(0)

    wire.stream.drop("a", 0)

    assert await asyncio.wait_for(waiting, 5) is None


@pytest.mark.parametrize(
    ("refused", "kind", "retry_after"),
    [
        (Refused("r", "m", "refused"), RequestRefused, None),
        (Refused("r", "m", "stopping"), EngineStopping, None),
        (Refused("r", "m", "failed"), EngineError, None),
        (Refused("r", "m", "queue_full", 7.5), QueueFull, 7.5),
        (Refused("r", "m", "waited_too_long", 2.0), WaitedTooLong, 2.0),
        (Refused("r", "m", "queue_full"), QueueFull, 1.0),
    ],
)
def test_a_refusal_becomes_its_error(
    refused: Refused, kind: type[EngineError], retry_after: float | None
) -> None:
    error = to_error(refused)

    assert type(error) is kind
    assert str(error) == "m"
    assert not isinstance(error, EngineDied)
    assert getattr(error, "retry_after", None) == retry_after
