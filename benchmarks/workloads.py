"""Requests that were made up: what a trace from one place does not show. The same seed makes the same ones.

Each mix is one way in which people or programs ask; blocks stand for 512 tokens or so. Time is in seconds.
"""

import random
from collections.abc import Callable, Iterable
from itertools import count

from benchmarks.traces import Request
from prefix_cache.tokens import pack

__all__ = ["MIXES", "make_mix"]

_Timed = tuple[float, list[int]]  # when, and the names of the prompt's blocks


class _Writer:
    """Makes prompts of one workload. No two calls give the same new block."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._names = count(1)

    def blocks(self, mean: float) -> list[int]:
        """New blocks, at least one; their number is geometric."""
        length = 1
        while self.rng.random() < 1 - 1 / mean:
            length += 1
        return [next(self._names) for _ in range(length)]

    def chats(
        self, start: float, end: float, *, rate: float, pause: float, mean_turns: float
    ) -> list[_Timed]:
        """Conversations that begin at `rate` a second, under one of four system prompts, and come back."""
        systems = [self.blocks(3) for _ in range(4)]
        asked: list[_Timed] = []
        time = start
        while (time := time + self.rng.expovariate(rate)) < end:
            prompt = self.rng.choice(systems) + self.blocks(6)
            turn_time = time
            asked.append((turn_time, list(prompt)))
            while self.rng.random() < 1 - 1 / mean_turns:
                turn_time += self.rng.lognormvariate(0, 1) * pause
                prompt += self.blocks(2)
                asked.append((turn_time, list(prompt)))
        return [item for item in asked if item[0] < end]

    def scans(self, start: float, end: float, *, rate: float) -> list[_Timed]:
        """Long documents that are read once."""
        asked = []
        time = start
        while (time := time + self.rng.expovariate(rate)) < end:
            asked.append((time, self.blocks(40)))
        return asked

    def agents(self, start: float, end: float, *, rate: float, pause: float) -> list[_Timed]:
        """Programs that call again and again with a context that grows, under one system prompt."""
        system = self.blocks(8)
        asked = []
        time = start
        while (time := time + self.rng.expovariate(rate)) < end:
            prompt, step_time = system + self.blocks(4), time
            for _ in range(self.rng.randint(5, 60)):
                asked.append((step_time, list(prompt)))
                step_time += self.rng.expovariate(1 / pause)
                prompt += self.blocks(1.5)
        return [item for item in asked if item[0] < end]

    def loops(self, start: float, end: float, *, pause: float, num_prompts: int) -> list[_Timed]:
        """The same prompts in the same order, over and over."""
        prompts = [self.blocks(10) for _ in range(num_prompts)]
        num_asked = int((end - start) / pause)
        return [(start + index * pause, prompts[index % num_prompts]) for index in range(num_asked)]


def _chats(writer: _Writer) -> Iterable[_Timed]:
    return writer.chats(0, 3600, rate=0.6, pause=90, mean_turns=4)


def _scans(writer: _Writer) -> Iterable[_Timed]:
    return [*_chats(writer), *writer.scans(0, 3600, rate=0.3)]


def _side(writer: _Writer) -> Iterable[_Timed]:
    """After each turn the client asks for a title or for tags: the conversation, and an instruction."""
    for time, prompt in _chats(writer):
        yield time, prompt
        yield time + writer.rng.uniform(2, 10), [*prompt, *writer.blocks(1)]


def _agents(writer: _Writer) -> Iterable[_Timed]:
    return writer.agents(0, 3600, rate=0.1, pause=20)


def _loops(writer: _Writer) -> Iterable[_Timed]:
    return [
        *writer.loops(0, 3600, pause=1, num_prompts=600),
        *writer.chats(0, 3600, rate=0.2, pause=60, mean_turns=4),
    ]


def _tenants(writer: _Writer) -> Iterable[_Timed]:
    """One whose people come back after minutes, and one that asks much and seldom again."""
    slow = writer.chats(0, 3600, rate=0.2, pause=240, mean_turns=8)
    return [*slow, *writer.chats(0, 3600, rate=2.0, pause=30, mean_turns=1.2)]


def _shift(writer: _Writer) -> Iterable[_Timed]:
    """People by day, programs that loop by night, other people in the morning."""
    return [
        *writer.chats(0, 2400, rate=0.6, pause=90, mean_turns=4),
        *writer.loops(2400, 4800, pause=1, num_prompts=400),
        *writer.chats(4800, 7200, rate=0.6, pause=15, mean_turns=8),
    ]


MIXES: dict[str, Callable[[_Writer], Iterable[_Timed]]] = {
    "chats": _chats,
    "scans": _scans,
    "side": _side,
    "agents": _agents,
    "loops": _loops,
    "tenants": _tenants,
    "shift": _shift,
}


def make_mix(name: str, seed: int = 1) -> list[Request]:
    """The requests of a mix, in the order of time."""
    asked = sorted(MIXES[name](_Writer(seed)), key=lambda item: item[0])
    return [Request(time, pack(names)) for time, names in asked]
