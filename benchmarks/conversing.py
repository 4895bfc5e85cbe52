"""Who asks in virtual time: requests that come by chance, and conversations that go on after an answer.

Owns the order of events in a simulation, and from it each request's latency.
"""

import heapq
import random
import statistics
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.azure import Lengths
from benchmarks.modelless import prompt_of
from benchmarks.virtual import Ended, Request, Server

__all__ = ["Arrival", "Chats", "normalized_latency", "poisson", "serve"]

Follow = Callable[[Ended, float], "Arrival | None"]  # an answer and when it was there -> what is asked next


class Arrival(NamedTuple):
    """A request, and the second at which it comes."""

    time: float
    request: Request


def poisson(requests: Iterable[Request], rate: float, seed: int) -> list[Arrival]:
    """So many requests a second, at times that know nothing of each other."""
    rng, now = random.Random(seed), 0.0
    arrivals = []
    for request in requests:
        now += rng.expovariate(rate)
        arrivals.append(Arrival(now, request))
    return arrivals


def serve(server: Server, arrivals: Iterable[Arrival], follow: Follow) -> list[float]:
    """Each request's seconds from its arrival to its end, over the tokens of its answer, as they end."""
    queue = [(each.time, each.request.name, each.request) for each in arrivals]
    heapq.heapify(queue)
    came: dict[str, float] = {}
    latencies = []
    while queue or server.has_work:
        if not server.has_work:
            server.clock.now = max(server.clock.now, queue[0][0])
        while queue and queue[0][0] <= server.clock.now:
            time, name, request = heapq.heappop(queue)
            came[name] = time
            server.submit(request)
        for ended in server.step():
            now = server.clock.now
            latencies.append((now - came.pop(ended.name)) / len(ended.answer))
            following = follow(ended, now)
            if following is not None:
                heapq.heappush(queue, (following.time, following.request.name, following.request))
    return latencies


def normalized_latency(latencies: Sequence[float]) -> float:
    """The mean over requests, in seconds a token (Yu et al., "Orca", OSDI 2022)."""
    return statistics.fmean(latencies)


@dataclass(slots=True)
class _Chat:
    history: "array[int]"
    num_turns: int = 0


class Chats:
    """Conversations of several turns. A turn resends the history, or the last tokens of it."""

    def __init__(
        self,
        turns: Sequence[Lengths],
        num_turns: int,
        *,
        window: int | None,
        shares: bool,
        think_seconds: float,
        seed: int,
    ) -> None:
        """`turns`: lengths of questions and their answers; each conversation takes `num_turns` of them.
        `window`: tokens of a prompt at most. `shares`: whether a turn may find what those before it left.
        """
        self._turns = turns
        self._num_turns = num_turns
        self._window = window
        self._shares = shares
        self._think_seconds = think_seconds
        self._rng = random.Random(seed)
        self._chats = [_Chat(array("i")) for _ in range(len(turns) // num_turns)]

    def first_turns(self) -> list[Request]:
        """What opens each conversation."""
        return [self._ask(number) for number in range(len(self._chats))]

    def follow(self, ended: Ended, now: float) -> Arrival | None:
        """The next turn, after some thought; None after the last."""
        number = int(ended.name.split("-")[0])
        chat = self._chats[number]
        chat.history.extend(ended.answer)
        thought = self._rng.expovariate(1 / self._think_seconds)
        if chat.num_turns == self._num_turns:
            return None
        return Arrival(now + thought, self._ask(number))

    def _ask(self, number: int) -> Request:
        chat = self._chats[number]
        place = number * self._num_turns + chat.num_turns
        lengths = self._turns[place]
        chat.history.frombytes(prompt_of(place, lengths.num_prompt))
        prompt = chat.history if self._window is None else chat.history[-self._window :]
        name = f"{number}-{chat.num_turns}"
        chat.num_turns += 1
        return Request(name, prompt[:], lengths.num_answer, b"chats" if self._shares else name.encode())
