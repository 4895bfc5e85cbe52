"""The whole of scheduling and caching without a tensor: a fake model with causal memory, and a loop to drive
it.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.scheduler import Limits, Scheduler
from engine.sequence import SamplingParams
from engine.step import Draw, Outcome, Step, StepResult
from prefix_cache.tree import PrefixCache
from tests.prefix_cache.memory import DigestMemory

VOCABULARY = 7
STOP = 6  # drawn now and then; ends a sequence


def token_after(digest: bytes, choice: int) -> int:
    """The fake model's draw: it depends on everything before it, and on nothing else."""
    return (int.from_bytes(digest, "little") // (1 + choice)) % VOCABULARY


def answer_alone(prompt: Sequence[int], sampling: SamplingParams, choice: int) -> tuple[list[int], str]:
    """What a sequence says when nobody else is there and nothing is cached."""
    size = len(prompt) + sampling.max_tokens
    memory = DigestMemory(1, size)
    tokens, drawn = list(prompt), []
    digest = memory.compute([0], tokens, 0, len(tokens))
    while True:
        token = token_after(digest, choice)
        if token in sampling.stop_token_ids and len(drawn) >= sampling.min_tokens:
            return drawn, "stop"
        drawn.append(token)
        tokens.append(token)
        if len(drawn) == sampling.max_tokens:
            return drawn, "length"
        digest = memory.compute([0], tokens, len(tokens) - 1, len(tokens))


class FakeRunner:
    """Runs steps over digests. Every span must compute something and find its predecessors in its own
    blocks.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.memory = DigestMemory(num_blocks, block_size)
        self.num_computed = 0

    def run(self, step: Step) -> StepResult:
        self.memory.copy(step.copies)
        draws = []
        for span in step.spans:
            assert span.start < span.end, "a span computes something"
            sequence = span.sequence
            digest = self.memory.compute(sequence.block_table, sequence.tokens, span.start, span.end)
            self.num_computed += span.end - span.start
            if span.draws:
                draws.append(Draw(token_after(digest, sequence.choice)))
        return StepResult(tuple(draws))


@dataclass
class Simulation:
    """A scheduler, a cache and a fake runner, stepped by hand; invariants are checked after every move."""

    num_blocks: int
    block_size: int
    limits: Limits
    now: float = 0.0
    answers: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    ends: dict[tuple[str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(self.cache, self.limits)
        self.runner = FakeRunner(self.num_blocks, self.block_size)

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        choices: int = 1,
        namespace: bytes = b"a",
    ) -> None:
        self.scheduler.add(request_id, array("i", prompt), sampling, namespace, choices)

    def step(self, while_in_flight: Callable[[], None] = lambda: None) -> Step | None:
        """One step; `while_in_flight` runs between its computation and its application."""
        self.now += 1.0
        step = self.scheduler.schedule(self.now)
        self.scheduler.check_invariants()
        if step is None:
            return None
        assert step.num_tokens <= self.limits.max_batch_tokens
        assert len({id(span.sequence) for span in step.spans}) == len(step.spans)
        result = self.runner.run(step)
        while_in_flight()
        for outcome in self.scheduler.apply(step, result, self.now):
            self._note(outcome)
        self.scheduler.check_invariants()
        return step

    def drain(self) -> None:
        """Run until nothing is left. A step without work while work waits would never end, so it fails."""
        while self.scheduler.has_work:
            assert self.step() is not None, "work waits and nothing runs"

    def _note(self, outcome: Outcome) -> None:
        key = (outcome.sequence.request_id, outcome.sequence.choice)
        assert key not in self.ends, "news of a sequence that has ended"
        answer = self.answers.setdefault(key, [])
        if outcome.finish_reason != "stop":
            answer.append(outcome.draw.token_id)
        if outcome.finish_reason is not None:
            self.ends[key] = outcome.finish_reason
