"""Events that arrive together go out together, and say what they would have said one by one."""

import asyncio
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache_messages import CacheReport
from engine.errors import EngineDied, EngineError
from engine.messages import Submit, TokenEvent
from engine.sequence import SamplingParams
from gateway.choice import Choice
from gateway.conversation.prompt import Prompts
from gateway.conversation.stop import StopMatcher, StopStrings
from gateway.events import EventResponse, Pace
from gateway.generation import Generation
from gateway.record import RequestRecord
from gateway.reply import Reply
from gateway.streaming import event_stream
from gateway.wire.cache_answers import CacheExplanation, TierTokens
from gateway.wire.chat_form import ChatForm
from gateway.wire.form import Head
from tests.fakes import ByteTokenizer, ScriptedEngine
from tests.gateway.stored import fresh_prompts
from tests.live import scripted_services

pytestmark = pytest.mark.anyio

PACE = Pace(ping_seconds=3600.0, send_timeout_seconds=3600.0)
HEAD = Head(id="chatcmpl-x", created=0, model="m", system_fingerprint="fp")
WORDS = ("Hello", " wor", b"\xf0\x9f", b"\x8d\x95", "ld", '"\n', "", "é", " end")


@dataclass(slots=True, eq=False)
class Bursts:
    """Implements `engine.client.Events`: bursts that come one after the other, and what comes then."""

    bursts: Sequence[Sequence[TokenEvent]]
    failure: EngineError | None = None
    _here: list[TokenEvent] = field(default_factory=list)
    _coming: Iterator[Sequence[TokenEvent]] = field(init=False)

    def __post_init__(self) -> None:
        self._coming = iter(self.bursts)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        if not self._here:
            await asyncio.sleep(0)
            self._here = list(next(self._coming, ()))
        if self._here:
            return self._here.pop(0)
        raise self.failure or StopAsyncIteration

    def arrived(self, most: int) -> list[TokenEvent]:
        taken, self._here = self._here[:most], self._here[most:]
        return taken

    def close(self) -> None:
        """Nothing runs."""


@dataclass(slots=True, eq=False)
class BurstEngine(ScriptedEngine):
    """Answers any request with the same events."""

    told: Bursts = field(default_factory=lambda: Bursts(()))

    async def start(self, submits: Sequence[Submit]) -> Any:
        return self.told


class Talk:
    """One stream, from a burst's events to the writes of a client."""

    def __init__(self, bursts: Bursts, *, num_choices: int = 1, stop: Sequence[str] = ()) -> None:
        self.tokenizer = TOKENIZER
        self.prompts: Prompts = fresh_prompts(TOKENIZER)
        self.services = scripted_services(BurstEngine([], told=bursts), self.prompts)
        submit = Submit(
            request_id="r",
            prompt=b"\0\0\0\0",
            sampling=SamplingParams(max_tokens=99),
            namespace=b"",
            num_choices=num_choices,
        )
        stops = StopStrings(stop)
        choices = [
            Choice(index, self.prompts.detokenizer(), StopMatcher(stops), min_tokens=0)
            for index in range(num_choices)
        ]
        self.reply = Reply(
            services=self.services,
            record=RequestRecord("req"),
            completion_id="chatcmpl-x",
            generations=[Generation(submit=submit, prompt_ids=array("i", [0]), choices=choices)],
            created=0,
        )
        self.writes: list[bytes] = []

    async def run(self, *, with_usage: bool = False) -> bytes:
        """All bytes of the stream."""
        form = ChatForm(HEAD, self.prompts.spelling, num_top=None, with_usage=with_usage)
        answer = await event_stream(self.reply, form, with_usage=with_usage, pace=PACE, held=ExitStack())
        assert isinstance(answer, EventResponse)

        async def send(message: Any) -> None:
            if message.get("more_body"):
                self.writes.append(message["body"])

        async def receive() -> Any:
            await asyncio.Event().wait()

        await answer({"type": "http", "method": "POST", "path": "/"}, receive, send)
        return b"".join(self.writes)


TOKENIZER = ByteTokenizer()
IDS = [TOKENIZER.id_of(word) for word in WORDS]


def events(ids: Sequence[int], choice: int = 0) -> list[TokenEvent]:
    """A token each, and an end without one."""
    told = [TokenEvent(request_id="r", choice=choice, token_ids=[each]) for each in ids]
    return [*told, TokenEvent(request_id="r", choice=choice, token_ids=[], finish_reason="stop")]


def singly(told: Sequence[TokenEvent]) -> list[list[TokenEvent]]:
    return [[each] for each in told]


@given(
    ids=st.lists(st.sampled_from(IDS), max_size=40),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    stop=st.sampled_from([(), ("ld",), (" end", "lo w")]),
    with_usage=st.booleans(),
)
async def test_however_events_arrive_the_stream_is_the_same(
    ids: list[int], cuts: list[int], stop: tuple[str, ...], with_usage: bool
) -> None:
    told = events(ids)
    bursts, start = [], 0
    while start < len(told):
        size = cuts[len(bursts) % len(cuts)]
        bursts.append(told[start : start + size])
        start += size

    one_by_one = await Talk(Bursts(singly(told)), stop=stop).run(with_usage=with_usage)

    assert await Talk(Bursts(bursts), stop=stop).run(with_usage=with_usage) == one_by_one


async def test_a_burst_is_one_write_and_the_end_rides_on_the_last() -> None:
    told = events(IDS)
    burst = Talk(Bursts([told[:4], told[4:8], told[8:]]))

    await burst.run(with_usage=True)

    assert len(burst.writes) == 3
    assert burst.writes[-1].endswith(b"data: [DONE]\n\n")
    assert burst.writes[-1].count(b"data: ") == 4, "a word, the reason, usage and the end"


async def test_a_token_that_comes_alone_is_a_write_of_its_own() -> None:
    told = Talk(Bursts(singly(events(IDS[:2]))))

    await told.run()

    assert [write.count(b"data: ") for write in told.writes] == [2, 1, 2]


async def test_a_token_without_text_is_no_write() -> None:
    half, rest = IDS[2:4]
    told = Talk(Bursts(singly(events([IDS[0], half, rest]))))

    await told.run()

    assert [write.count(b"data: ") for write in told.writes] == [2, 1, 2]


async def test_a_heap_that_has_gathered_is_told_in_writes_of_bounded_size() -> None:
    talk = Talk(Bursts([events(IDS[:1] * 1000)]))

    whole = await talk.run()

    assert whole.count(b'"content":"Hello"') == 1000
    assert max(write.count(b"data: ") for write in talk.writes) <= 40


async def test_choices_in_one_burst_keep_their_order() -> None:
    one, other = events(IDS[:2]), events(IDS[:1], choice=1)
    mixed = [one[0], other[0], one[1], other[1], one[2]]

    burst = await Talk(Bursts([mixed]), num_choices=2).run()

    assert burst == await Talk(Bursts(singly(mixed)), num_choices=2).run()
    assert re.findall(rb'"index":(\d)', burst) == [b"0", b"0", b"1", b"1", b"0", b"1", b"0"]


async def test_what_came_before_a_failure_is_told_before_it() -> None:
    talk = Talk(Bursts([events(IDS[:2])[:2]], failure=EngineDied("gone")))

    await talk.run()

    assert b"Hello" in talk.writes[0]
    assert b'"error"' in talk.writes[-1]
    assert talk.reply.record.outcome == "failed"


async def test_what_comes_with_the_end_does_not_wait_for_what_is_stored_before_it() -> None:
    told = events(IDS[:2])
    first = TokenEvent(request_id="r", choice=0, token_ids=[IDS[0]], cache=CacheReport())
    talk = Talk(Bursts([[first, *told[1:]]]))
    written: list[int] = []

    async def explain(report: CacheReport) -> CacheExplanation:
        written.append(len(talk.writes))
        return CacheExplanation(
            tokens=TierTokens.of(report), computed=0, copied_blocks=0, parted_at=None, reason="none", hint=""
        )

    talk.reply.explain = explain
    whole = await talk.run()

    assert written == [1]
    assert b"Hello" in talk.writes[0]
    assert b"stop" not in talk.writes[0]
    assert whole.count(b'"cache"') == 1
