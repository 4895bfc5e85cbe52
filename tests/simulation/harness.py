"""The whole of scheduling and caching without a tensor: a fake model with causal memory, and a loop to drive
it.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.scheduler import Limits, Scheduler
from engine.sequence import SamplingParams
from engine.sequence import Sequence as Sequence_
from engine.step import Draw, Outcome, Span, SpanResult, Step, StepResult
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


def weights_after(digest: bytes) -> list[float]:
    """The fake model's log-probabilities, of no special sum: none is above 0, and no two are equal."""
    return [-(digest[token] + token / 10) / 100 for token in range(VOCABULARY)]


def candidates_after(digest: bytes, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens, best first."""
    ranked = sorted(enumerate(weights_after(digest)), key=lambda each: -each[1])
    return tuple(ranked[:count])


def digest_of(tokens: Sequence[int]) -> bytes:
    """What the model makes of a text that nobody has cached."""
    return DigestMemory(1, len(tokens)).compute([0], list(tokens), 0, len(tokens))


def answer_alone(prompt: Sequence[int], sampling: SamplingParams, choice: int) -> tuple[list[int], str]:
    """What a sequence says when nobody else is there and nothing is cached."""
    tokens, drawn = list(prompt), []
    if sampling.max_tokens == 0:
        return drawn, "length"
    while True:
        token = token_after(digest_of(tokens), choice)
        if token in sampling.stop_token_ids and len(drawn) >= sampling.min_tokens:
            return drawn, "stop"
        drawn.append(token)
        tokens.append(token)
        if len(drawn) == sampling.max_tokens:
            return drawn, "length"


def search_alone(
    prompt: Sequence[int], sampling: SamplingParams, num_wanted: int
) -> list[tuple[list[int], str]]:
    """A plain beam search over the same log-probabilities: all texts are written out, and all
    continuations.
    """
    beam = sampling.beam
    assert beam is not None
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int], str]] = []
    for length in range(1, sampling.max_tokens + 1):
        grown = []
        for place, (total, drawn) in enumerate(live):
            for token, weight in enumerate(weights_after(digest_of([*prompt, *drawn]))):
                grown.append((-(total + weight), place, token))
        grown.sort()
        following = []
        for rank, (negative, place, token) in enumerate(grown[: 2 * beam.width]):
            text = [*live[place][1], token]
            if token in sampling.stop_token_ids:
                if rank < beam.width:
                    ended.append((-negative / length**beam.length_penalty, text, "stop"))
            elif len(following) < beam.width:
                following.append((-negative, text))
        live = following
        ended = sorted(ended, key=lambda each: -each[0])[: beam.width]
        if not live:
            break
        if len(ended) == beam.width and length < sampling.max_tokens:
            could_last = beam.early_stopping == "never" and beam.length_penalty > 0
            last = sampling.max_tokens if could_last else length
            best_to_come = max(total / last**beam.length_penalty for total, _ in live)
            if beam.early_stopping is True or ended[-1][0] >= best_to_come:
                live = []
                break
    for total, text in live:
        ended.append((total / len(text) ** beam.length_penalty, text, "length"))
    ended.sort(key=lambda each: -each[0])
    found = [(text[:-1] if reason == "stop" else text, reason) for _, text, reason in ended]
    return (found + [found[-1]] * num_wanted)[:num_wanted]


def prompt_weights_alone(prompt: Sequence[int]) -> list[float]:
    """The log-probabilities of a prompt's tokens, from its second on."""
    return [weights_after(digest_of(prompt[:place]))[prompt[place]] for place in range(1, len(prompt))]


class FakeRunner:
    """Runs steps over digests. Every span must compute something and find its predecessors in its own
    blocks. Its proposals are right more often than not.
    """

    def __init__(self, memory: TierMemory) -> None:
        self.memory = memory
        self.num_computed = 0

    def run(self, step: Step) -> StepResult:
        self.memory.tiers[Tier.DEVICE].copy(step.copies)
        return StepResult(tuple(self._run_span(span) for span in step.spans))

    def _run_span(self, span: Span) -> SpanResult:
        assert span.start < span.end, "a span computes something"
        sequence = span.sequence
        digests = self._compute(span, list(sequence.tokens), span.start, span.end)
        weighed = tuple(
            Draw(sequence.tokens[place + 1], weights_after(digest)[sequence.tokens[place + 1]])
            for place, digest in enumerate(digests, span.start)
            if sequence.weighs_prompt and place + 1 < sequence.num_prompt_tokens
        )
        if not span.draws:
            return SpanResult(prompt_logprobs=weighed)
        if sequence.sampling.beam is not None:
            top = candidates_after(digests[-1], 2 * sequence.sampling.beam.width)
            return SpanResult((Draw(*top[0], top),), prompt_logprobs=weighed)
        return SpanResult(*self._verify(span, digests[-1]), weighed)

    def _verify(self, span: Span, digest: bytes) -> tuple[tuple[Draw, ...], int]:
        """Propose, compute all that was proposed, and keep what the model itself draws."""
        sequence, tokens = span.sequence, list(span.sequence.tokens)
        draws = [token_after(digest, sequence.choice)]
        is_right = True
        num_proposed = digest[0] % (span.num_lookahead + 1)
        for place in range(span.end, span.end + num_proposed):
            is_wrong = digest[1] % 3 == 0
            guess = (token_after(digest, sequence.choice) + is_wrong) % VOCABULARY
            is_right = is_right and not is_wrong
            tokens.append(guess)
            (digest,) = self._compute(span, tokens, place, place + 1)
            if is_right:
                draws.append(token_after(digest, sequence.choice))
        return tuple(map(Draw, draws)), num_proposed

    def _compute(self, span: Span, tokens: list[int], start: int, end: int) -> list[bytes]:
        """The digest after each of the tokens."""
        self.num_computed += end - start
        device = self.memory.tiers[Tier.DEVICE]
        table = span.sequence.block_table
        return [device.compute(table, tokens, place, place + 1) for place in range(start, end)]


class SomeLookahead:
    """As many tokens as chance says; it must be told of all that was proposed."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._known: set[Sequence_] = set()

    def num_tokens(self, sequence: Sequence_, num_running: int) -> int:
        self._known.add(sequence)
        return (sequence.num_tokens * 7 + num_running) % (self._max_tokens + 1)

    def note(self, sequence: Sequence_, num_proposed: int, num_accepted: int) -> None:
        assert sequence in self._known
        assert 0 <= num_accepted <= num_proposed <= self._max_tokens

    def forget(self, sequence: Sequence_) -> None:
        self._known.discard(sequence)


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
    weights: dict[bytes, float] = field(default_factory=dict)  # by namespace
    max_lookahead: int = 0
    budget: int | None = None  # of steps in which answers grow
    max_request_tokens: int = 0
    now: float = 0.0
    num_moved: int = 0  # copies between tiers
    answers: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    ends: dict[tuple[str, int], str] = field(default_factory=dict)
    prompt_weights: dict[str, list[float]] = field(default_factory=dict)

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
        self.scheduler = Scheduler(
            self.cache,
            self.limits,
            weights={account_of(name): weight for name, weight in self.weights.items()},
            lookahead=SomeLookahead(self.max_lookahead),
        )
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
        queue_priority: int = 0,
    ) -> None:
        self.scheduler.add(
            request_id,
            array("i", prompt),
            sampling,
            namespace,
            choices,
            retention,
            queue_priority=queue_priority,
            now=self.now,
        )

    def step(self, while_in_flight: Callable[[], None] = lambda: None) -> Step | None:
        """One step; `while_in_flight` runs between its computation and its application."""
        self.now += 1.0
        self.cache.tend(self.now)
        self._send()
        step = self.scheduler.schedule(self.now, self.budget)
        self._send()
        self.scheduler.check_invariants()
        if step is None:
            self._move()
            return None
        assert step.num_tokens <= self.limits.max_batch_tokens
        assert len({id(span.sequence) for span in step.spans}) == len(step.spans)
        result = self.runner.run(step)
        while_in_flight()
        self._send()
        self._move()
        self.scheduler.look_ahead(self.now, self.budget)
        self.scheduler.check_invariants()
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
        request_id = outcome.sequence.request_id
        key = (request_id, outcome.choice)
        assert key not in self.ends, "news of a sequence that has ended"
        assert outcome.is_first == (key not in self.answers)
        weighed = [draw.logprob for draw in outcome.prompt_logprobs]
        self.prompt_weights.setdefault(request_id, []).extend(weighed)
        self.answers.setdefault(key, []).extend(draw.token_id for draw in outcome.draws)
        assert (outcome.stop_token_id is not None) == (outcome.finish_reason == "stop")
        if outcome.finish_reason is not None:
            self.ends[key] = outcome.finish_reason
