"""The whole of scheduling and caching without a tensor: a fake model with causal memory, and a loop to drive
it.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.scheduler import Limits, Scheduler
from engine.sequence import SamplingParams
from engine.step import Draw, Outcome, Step, StepResult
from prefix_cache.assembly import CacheSizes, assemble
from prefix_cache.lease import PLAIN, Retention
from prefix_cache.plan import Tier, Transfer
from prefix_cache.quota import Quota, account_of
from prefix_cache.swap import SwapMode, SwapRates
from tests.prefix_cache.memory import DigestMemory
from tests.prefix_cache.tier_memory import TierMemory

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

    def __init__(self, memory: TierMemory) -> None:
        self.memory = memory
        self.num_computed = 0

    def run(self, step: Step) -> StepResult:
        device = self.memory.tiers[Tier.DEVICE]
        device.copy(step.copies)
        draws = []
        for span in step.spans:
            assert span.start < span.end, "a span computes something"
            sequence = span.sequence
            digest = device.compute(sequence.block_table, sequence.tokens, span.start, span.end)
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
    num_host_blocks: int = 0
    num_disk_blocks: int = 0
    copies_per_step: int = 3  # of transfers between tiers
    swap: SwapMode = "auto"
    disk_for_all: bool = True
    park_after: float | None = None
    quotas: dict[bytes, Quota] = field(default_factory=dict)  # by namespace
    max_request_tokens: int = 0
    now: float = 0.0
    num_moved: int = 0  # copies between tiers
    answers: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    ends: dict[tuple[str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = {
            Tier.DEVICE: self.num_blocks,
            Tier.HOST: self.num_host_blocks,
            Tier.DISK: self.num_disk_blocks,
        }
        self.memory = TierMemory(counts, self.block_size)
        self.runner = FakeRunner(self.memory)
        self.boot()

    def boot(self) -> None:
        """Start with an empty device and what lies on the disk."""
        sizes = CacheSizes(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            num_host_blocks=self.num_host_blocks,
            num_disk_blocks=self.num_disk_blocks,
            max_request_tokens=self.max_request_tokens,
            quotas={account_of(name): quota for name, quota in self.quotas.items()},
        )
        self.cache, _ = assemble(
            sizes,
            rates=SwapRates(1.0, {}, mode=self.swap),
            records=dict(self.memory.records),
            disk_for_all=self.disk_for_all,
            park_after=self.park_after,
            now=self.now,
        )
        self.scheduler = Scheduler(self.cache, self.limits)
        self.moving: list[tuple[Transfer, int]] = []  # and copies that are done

    def crash(self) -> None:
        """Lose all but the disk, in the middle of whatever moves."""
        self.memory.crash()
        self.boot()

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        choices: int = 1,
        namespace: bytes = b"a",
        retention: Retention = PLAIN,
    ) -> None:
        self.scheduler.add(request_id, array("i", prompt), sampling, namespace, choices, retention)

    def step(self, while_in_flight: Callable[[], None] = lambda: None) -> Step | None:
        """One step; `while_in_flight` runs between its computation and its application."""
        self.now += 1.0
        self.cache.tend(self.now)
        self._send()
        step = self.scheduler.schedule(self.now)
        self._send()
        self.scheduler.check_invariants()
        if step is None:
            self._move()
            return None
        assert step.num_tokens <= self.limits.max_batch_tokens
        assert len({id(span.sequence) for span in step.spans}) == len(step.spans)
        result = self.runner.run(step)
        while_in_flight()
        for outcome in self.scheduler.apply(step, result, self.now):
            self._note(outcome)
        self._move()
        self.scheduler.check_invariants()
        return step

    def drain(self) -> None:
        """Run until nothing is left. Work that waits while nothing runs or moves would wait for ever."""
        while self.scheduler.has_work:
            num_moved = self.num_moved
            assert self.step() is not None or self.num_moved > num_moved, "work waits and nothing runs"

    def settle(self) -> None:
        """Carry out whatever waits to be moved."""
        self._send()
        while self.moving:
            self._move()
            self._send()
        self.scheduler.check_invariants()

    def _send(self) -> None:
        for block in self.cache.take_erased():
            self.memory.erase(block)
        self.moving += [
            (transfer, 0) for transfer in self.cache.take_transfers(2 - len(self.moving), self.now)
        ]

    def _move(self) -> None:
        """Carry out some copies, in order, and tell the cache what has ended."""
        for _ in range(self.copies_per_step):
            if not self.moving:
                break
            transfer, num_done = self.moving.pop(0)
            self.num_moved += 1
            is_sound = self.memory.carry_out(transfer, num_done)
            num_done += is_sound
            if is_sound and num_done < len(transfer.copies):
                self.moving.insert(0, (transfer, num_done))
            else:
                self.cache.finish(transfer, num_done, self.now, is_damaged=not is_sound)
        self.scheduler.resume_loaded()

    def _note(self, outcome: Outcome) -> None:
        key = (outcome.sequence.request_id, outcome.sequence.choice)
        assert key not in self.ends, "news of a sequence that has ended"
        answer = self.answers.setdefault(key, [])
        if outcome.finish_reason != "stop":
            answer.append(outcome.draw.token_id)
        if outcome.finish_reason is not None:
            self.ends[key] = outcome.finish_reason
