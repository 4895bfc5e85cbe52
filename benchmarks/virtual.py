"""Serving in virtual time: requests come when they come, and a step takes what such steps were measured to.

Owns the clock, the times of steps, and two servers: the engine's own scheduler and cache over a runner that
computes nothing, and reserved memory, which gives each request contiguous room before it starts. Reserved
memory computes prompts whole; the engine's scheduler cuts them where others wait, as it does when it serves.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from benchmarks.azure import Lengths
from benchmarks.modelless import HashRunner
from benchmarks.reservation import Policy, Room, first_gap
from engine.core import EngineCore
from engine.messages import Accepted, Submit, TokenEvents
from engine.pace import StepPace
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.step import Step, StepResult

__all__ = ["Ended", "PagedServer", "Request", "ReservedServer", "Server", "StepTimes", "VirtualClock"]

MAX_SEQUENCES = 256  # running at once


@dataclass(slots=True)
class VirtualClock:
    """Seconds since the start of a simulation."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked: a prompt's tokens, and how many are answered."""

    name: str
    prompt: "array[int]"
    num_answer: int
    namespace: bytes = b"bench"

    @property
    def lengths(self) -> Lengths:
        """Of prompt and answer."""
        return Lengths(len(self.prompt), self.num_answer)


class Ended(NamedTuple):
    """What was asked under a name has its answer. Where nothing is drawn the answer is of zeros."""

    name: str
    answer: "array[int]"


class StepTimes:
    """Seconds of a step by its tokens and by the tokens that they see, as a machine was measured to take."""

    def __init__(self, by_tokens: dict[int, float], per_seen: float) -> None:
        """`by_tokens`: seconds of steps of so many tokens that see few. `per_seen`: seconds for each token
        that lies in the blocks of a step's sequences.
        """
        self.by_tokens = by_tokens
        self.per_seen = per_seen
        self._pace = StepPace(1.0, by_tokens)

    def seconds(self, num_tokens: int, num_seen: int) -> float:
        """Of one step."""
        return self._pace.seconds(num_tokens) + self.per_seen * num_seen

    def __str__(self) -> str:
        sizes = ", ".join(f"{size}: {seconds * 1000:.1f}" for size, seconds in self.by_tokens.items())
        return f"ms by tokens of a step {{{sizes}}}, and {self.per_seen * 1e6:.3f} us for each token seen"


class Server(Protocol):
    """Serves requests on a clock of its own."""

    clock: VirtualClock

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def submit(self, request: Request) -> None:
        """Let a request wait. Raises ValueError when it could never run."""
        ...

    def step(self) -> list[Ended]:
        """Compute one step, which takes its time; returns what it ended."""
        ...


class _TimedRunner(HashRunner):
    """Moves the clock by what a step takes."""

    def __init__(self, clock: VirtualClock, times: StepTimes, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, num_blocks * block_size)
        self._clock = clock
        self._times = times

    def run(self, step: Step) -> StepResult:
        """As HashRunner."""
        self._clock.now += self._times.seconds(step.num_tokens, sum(span.end for span in step.spans))
        return super().run(step)


class PagedServer:
    """The engine's own scheduler and cache over a pool of so many token slots."""

    def __init__(self, times: StepTimes, num_slots: int, block_size: int = 16) -> None:
        self.clock = VirtualClock()
        runner = _TimedRunner(self.clock, times, num_slots // block_size, block_size)
        limits = Limits(
            max_batch_tokens=max(num_slots, MAX_SEQUENCES),
            max_sequences=MAX_SEQUENCES,
            max_waiting=1 << 30,
            max_waiting_tokens=1 << 60,
        )
        self.core = EngineCore(runner, limits, self.clock)
        self._answers: dict[str, array[int]] = {}

    @property
    def has_work(self) -> bool:
        """As `Server`."""
        return self.core.has_work

    def submit(self, request: Request) -> None:
        """As `Server`."""
        message = Submit(
            request_id=request.name,
            prompt=request.prompt.tobytes(),
            sampling=SamplingParams(max_tokens=request.num_answer),
            namespace=request.namespace,
        )
        answer = self.core.submit(message)
        if not isinstance(answer, Accepted):
            raise ValueError(answer.message)
        self._answers[request.name] = array("i")

    def step(self) -> list[Ended]:
        """As `Server`."""
        ended = []
        for message in self.core.step():
            assert isinstance(message, TokenEvents), "no step fails here"
            for event in message.events:
                answer = self._answers[event.request_id]
                answer.extend(event.token_ids)
                if event.finish_reason is not None:
                    ended.append(Ended(event.request_id, self._answers.pop(event.request_id)))
        return ended


@dataclass(slots=True)
class _Reserved:
    name: str
    room: Room
    num_tokens: int
    num_answer: int
    num_left: int
    is_new: bool = True


class ReservedServer:
    """Requests start in order, each when a gap is large enough for what its policy reserves."""

    def __init__(self, times: StepTimes, num_slots: int, policy: Policy, longest: int) -> None:
        self.clock = VirtualClock()
        self._times = times
        self._num_slots = num_slots
        self._policy = policy
        self._longest = longest
        self._waiting: list[Request] = []
        self._running: list[_Reserved] = []

    @property
    def has_work(self) -> bool:
        """As `Server`."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> None:
        """As `Server`."""
        if self._policy(request.lengths, self._longest) > self._num_slots:
            raise ValueError(f"{request.name} would reserve more than there is")
        self._waiting.append(request)

    def step(self) -> list[Ended]:
        """As `Server`."""
        self._admit()
        num_new = sum(each.num_tokens if each.is_new else 1 for each in self._running)
        self.clock.now += self._times.seconds(num_new, sum(each.num_tokens for each in self._running))
        for each in self._running:
            each.is_new = False
            each.num_tokens += 1
            each.num_left -= 1
        ended = [
            Ended(each.name, array("i", bytes(4 * each.num_answer)))
            for each in self._running
            if not each.num_left
        ]
        self._running = [each for each in self._running if each.num_left]
        return ended

    def _admit(self) -> None:
        while self._waiting and len(self._running) < MAX_SEQUENCES:
            request = self._waiting[0]
            size = self._policy(request.lengths, self._longest)
            start = first_gap(self._rooms(), size, self._num_slots)
            if start is None:
                return
            del self._waiting[0]
            num_prompt, num_answer = request.lengths
            self._running.append(
                _Reserved(request.name, Room(start, size), num_prompt, num_answer, num_answer)
            )

    def _rooms(self) -> Sequence[Room]:
        return sorted((each.room for each in self._running), key=lambda room: room.start)
