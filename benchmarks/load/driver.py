"""Drives one server with conversations: who speaks when, and the record of each turn.

It owns the run's clock. A conversation that meets a failure ends there, since its history would miss an
answer; the turns that it leaves are counted.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.load.arrivals import Bursts, Start, Times, Users
from benchmarks.load.client import Answer, Client, Server
from benchmarks.load.conversations import Conversation
from benchmarks.load.record import Record

__all__ = ["Load", "Run", "drive"]


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, and when."""

    conversations: Sequence[Conversation]
    start: Start

    @property
    def num_turns(self) -> int:
        """Requests, if none fails."""
        return sum(len(each.turns) for each in self.conversations)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it."""

    records: tuple[Record, ...]  # in the order in which they ended
    seconds: float  # from the begin to the last end
    num_unsent: int


async def drive(load: Load, server: Server, observe: Callable[[Record], None]) -> Run:
    """Ask it all; `observe` is called with each record as its request ends."""
    driver = _Driver(Client(server), observe)
    try:
        await driver.run(load)
    finally:
        driver.client.close()
    records = tuple(driver.records)
    seconds = max((record.ended for record in records), default=0.0)
    return Run(records, seconds, load.num_turns - len(records))


class _Driver:
    def __init__(self, client: Client, observe: Callable[[Record], None]) -> None:
        self.client = client
        self.records: list[Record] = []
        self._observe = observe
        self._begin = time.perf_counter()

    @property
    def _now(self) -> float:
        return time.perf_counter() - self._begin

    async def run(self, load: Load) -> None:
        conversations = list(enumerate(load.conversations))
        match load.start:
            case Users(count):
                line = iter(conversations)
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(count, len(conversations))):
                        group.create_task(self._user(line))
            case Times(seconds):
                async with asyncio.TaskGroup() as group:
                    for (number, conversation), planned in zip(conversations, seconds, strict=True):
                        group.create_task(self._converse(number, conversation, planned))
            case Bursts(size):
                for begin in range(0, len(conversations), size):
                    planned = self._now
                    async with asyncio.TaskGroup() as group:
                        for number, conversation in conversations[begin : begin + size]:
                            group.create_task(self._converse(number, conversation, planned))

    async def _user(self, line: Iterator[tuple[int, Conversation]]) -> None:
        for number, conversation in line:
            await self._converse(number, conversation, self._now)

    async def _converse(self, number: int, conversation: Conversation, planned: float) -> None:
        messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
        for place, turn in enumerate(conversation.turns):
            await asyncio.sleep(planned - self._now)
            messages.append({"role": "user", "content": turn.text})
            answer = await self.client.ask(messages, turn.num_answer)
            record = self._record(answer, (number, place), turn.num_answer, planned)
            self.records.append(record)
            self._observe(record)
            if record.failure is not None:
                return
            messages.append({"role": "assistant", "content": answer.text or "ok"})
            planned = record.ended + turn.pause

    def _record(self, answer: Answer, place: tuple[int, int], num_asked: int, planned: float) -> Record:
        return Record(
            conversation=place[0],
            turn=place[1],
            planned=planned,
            sent=answer.sent - self._begin,
            arrivals=tuple(arrival - self._begin for arrival in answer.arrivals),
            ended=answer.ended - self._begin,
            num_asked_tokens=num_asked,
            num_tokens=answer.num_tokens,
            tells_tokens=answer.tells_tokens,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_cached_tokens=answer.num_cached_tokens,
            failure=answer.failure,
        )
