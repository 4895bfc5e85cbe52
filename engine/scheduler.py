"""Which tokens of which sequences the next step computes, and what its result means. No tensor, no clock.

`schedule` chooses and reserves, `apply` moves state, `abort` and `abandon` take sequences out; nothing else
changes anything. A step is token counts by sequence, so chunked prefill, cache hits and decoding are one
loop. The oldest sequence always gets its blocks, at the youngest's expense, so work never stalls. Preempting
is forgetting: the blocks stay cached and are matched again.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.errors import RequestRefused
from engine.leaders import has_leader
from engine.sequence import FinishReason, SamplingParams, Sequence, Status
from engine.step import Draw, Outcome, Span, Step, StepPlan, StepResult
from prefix_cache.lease import PLAIN, Retention
from prefix_cache.plan import Tier
from prefix_cache.quota import Account, account_of
from prefix_cache.tiers import TieredCache

__all__ = ["Counters", "Limits", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one step may hold, and how unfair admission may be."""

    max_batch_tokens: int  # computed by one step
    max_sequences: int  # running at once
    max_overtaken: int = 64  # younger sequences that may pass one that waits for blocks

    def __post_init__(self) -> None:
        assert self.max_sequences <= self.max_batch_tokens, "every running sequence must fit into a step"


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_found_tokens: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))


class Scheduler:
    """Waiting and running sequences over one cache."""

    def __init__(self, cache: TieredCache, limits: Limits) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest admission first
        self.counters = Counters()
        self._cache = cache
        self._limits = limits
        self._forks: dict[str, list[Sequence]] = {}  # choices that start when their first one has its prompt
        self._leaving: list[Sequence] = []  # ended while the step that computes them is in flight
        self._is_in_flight = False

    @property
    def num_loading(self) -> int:
        """Running sequences whose blocks are on their way from colder tiers."""
        return sum(sequence.status is Status.LOADING for sequence in self.running)

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.waiting or self.running)

    def add(
        self,
        request_id: str,
        prompt: "array[int]",
        sampling: SamplingParams,
        namespace: bytes,
        num_choices: int,
        retention: Retention = PLAIN,
    ) -> None:
        """Queue a request. Raises RequestRefused when it could never run."""
        capacity = self._cache.device.ledger.ceiling_of(namespace) * self._cache.block_size
        if not prompt or sampling.max_tokens < 1 or num_choices < 1:
            raise RequestRefused("a request needs a prompt, room for one token, and one choice")
        if len(prompt) + sampling.max_tokens > capacity:
            raise RequestRefused(
                f"{len(prompt)} prompt tokens and {sampling.max_tokens} new ones exceed the {capacity} that "
                "there is memory for"
            )
        first, *forks = (
            Sequence(request_id, choice, array("i", prompt), len(prompt), sampling, namespace, retention)
            for choice in range(num_choices)
        )
        self.waiting.append(first)
        if forks:
            self._forks[request_id] = forks

    def resume_loaded(self) -> None:
        """Let sequences run whose blocks have arrived. To be called when transfers have ended."""
        for sequence in self.running:
            if sequence.status is Status.LOADING and not self._cache.is_loading(sequence.held_lease):
                sequence.status = Status.RUNNING
                self._note_match(sequence)

    def schedule(self, now: float) -> Step | None:
        """Choose and reserve the next step; None if there is none. Every step must be applied or
        abandoned.
        """
        assert not self._is_in_flight, "a step is in flight already"
        plan = StepPlan(self._limits.max_batch_tokens)
        self._continue_running(plan, now)
        if not self._cache.is_pressed:
            self._admit(plan, now)
        if not plan.spans:
            return None
        self._is_in_flight = True
        return Step(tuple(plan.spans.values()), self._cache.take_copies())

    def apply(self, step: Step, result: StepResult, now: float) -> list[Outcome]:
        """Take in what a step computed: commit its blocks, append its tokens, end what has ended."""
        self._land()
        self.counters.num_steps += 1
        draws = iter(result.draws)
        outcomes = []
        for span in step.spans:
            draw = next(draws) if span.draws else None
            self._commit(span)
            if draw is not None and span.sequence.status is Status.RUNNING:
                outcomes.append(self._take(span.sequence, draw, now))
        self._release_leaving(now)
        return outcomes

    def abandon(self, step: Step, now: float) -> list[Sequence]:
        """A step has failed: forget its sequences and all choices of their requests. Returns them."""
        self._land()
        lost = {span.sequence.request_id for span in step.spans}
        gone = [sequence for request_id in lost for sequence in self._take_out(request_id, None)]
        self._end(gone, now)
        self._release_leaving(now)
        return gone

    def abort(self, request_id: str, choice: int | None, now: float) -> None:
        """End a request, or one of its choices. Blocks that a step in flight uses come home with it."""
        gone = self._take_out(request_id, choice)
        self.counters.num_aborted += len(gone)
        self._end(gone, now)

    def held_tokens(self) -> int:
        """Tokens that lie in held blocks, shared ones once."""
        return self._cache.num_held_tokens(
            (sequence.lease, sequence.num_computed) for sequence in self.running if sequence.lease
        )

    def check_invariants(self) -> None:
        """Assert that blocks and leases agree; for tests and idle moments."""
        held = [*self.running, *self._leaving]
        self._cache.check_invariants(sequence.lease for sequence in held if sequence.lease is not None)
        assert all(sequence.lease is None for sequence in self.waiting), "who waits holds nothing"

    def _continue_running(self, plan: StepPlan, now: float) -> None:
        """Decodes first, one token each, then the rest of prompts, oldest first."""
        ready = [sequence for sequence in self.running if sequence.status is Status.RUNNING]
        by_need = sorted(ready, key=lambda sequence: sequence.num_tokens - sequence.num_computed > 1)
        for sequence in by_need:
            num_tokens = min(sequence.num_tokens - sequence.num_computed, plan.budget)
            if num_tokens and self._grow_or_preempt(sequence, sequence.num_computed + num_tokens, plan, now):
                plan.add(sequence, num_tokens)

    def _grow_or_preempt(self, sequence: Sequence, num_tokens: int, plan: StepPlan, now: float) -> bool:
        """Get blocks for a running sequence, at the youngest's expense.

        False if it was shed itself, or should sit this step out: copies that run hold blocks which are free
        when they end, so nobody is shed for them.
        """
        while sequence.lease is not None:
            if self._cache.grow(sequence.lease, num_tokens):
                return True
            if self._cache.num_moving:
                return False
            self._preempt(self._youngest_rival(sequence), plan, now)
        return False

    def _youngest_rival(self, sequence: Sequence) -> Sequence:
        """Who gives its blocks for a sequence's: one of its account, where its ceiling is in the way."""
        if not self._cache.device.ledger.is_capped(sequence.namespace):
            return self.running[-1]
        account = account_of(sequence.namespace)
        return next(each for each in reversed(self.running) if account_of(each.namespace) == account)

    def _preempt(self, sequence: Sequence, plan: StepPlan, now: float) -> None:
        plan.drop(sequence)
        self.running.remove(sequence)
        self._release(sequence, now)
        sequence.status = Status.WAITING
        sequence.num_computed = 0
        self.waiting.appendleft(sequence)
        self.counters.num_preemptions += 1

    def _admit(self, plan: StepPlan, now: float) -> None:
        """Start waiting sequences in order. One that lacks blocks may be overtaken, but only so often; one
        that its account's ceiling holds up holds up nobody else.
        """
        passed: list[Sequence] = []
        capped: set[Account] = set()
        num_looked_at = 0
        for sequence in list(self.waiting):
            # Looking at more than could run at once would make a long queue's every step slow.
            if num_looked_at == self._limits.max_sequences:
                break
            if not plan.budget or len(self.running) >= self._limits.max_sequences:
                break
            if account_of(sequence.namespace) in capped:
                continue
            num_looked_at += 1
            if self._has_leader(sequence):
                continue
            if self._start(sequence, plan, now):
                for blocked in passed:
                    blocked.num_overtaken += 1
                self.waiting.remove(sequence)
            elif self._cache.device.ledger.is_capped(sequence.namespace):
                capped.add(account_of(sequence.namespace))
            else:
                passed.append(sequence)
            if any(blocked.num_overtaken >= self._limits.max_overtaken for blocked in passed):
                break

    def _start(self, sequence: Sequence, plan: StepPlan, now: float) -> bool:
        """Lease blocks to a waiting sequence if all its tokens fit, and one more block for each that runs."""
        reserve = len(self.running) * self._cache.block_size
        lease = self._cache.acquire(
            sequence.namespace,
            sequence.tokens.tobytes(),
            max_new=plan.budget,
            num_required=sequence.num_tokens,
            num_spare=reserve,
            now=now,
            retention=sequence.retention,
        )
        if lease is None:
            return False
        sequence.lease = lease
        sequence.num_computed = lease.num_matched
        self.running.append(sequence)
        if self._cache.is_loading(lease):
            sequence.status = Status.LOADING
            return True
        sequence.status = Status.RUNNING
        self._note_match(sequence)
        plan.add(sequence, min(sequence.num_tokens - sequence.num_computed, plan.budget))
        return True

    def _note_match(self, sequence: Sequence) -> None:
        lease = sequence.held_lease
        sequence.num_computed = lease.num_matched
        if sequence.num_cached is None:
            sequence.num_cached = lease.num_matched
            sequence.explanation = lease.explanation
            self.counters.num_prompt_tokens += sequence.num_prompt_tokens
            self.counters.num_cached_tokens += lease.num_matched
            if lease.explanation is not None:
                for tier, num_tokens in lease.explanation.found.items():
                    self.counters.num_found_tokens[tier] += num_tokens

    def _has_leader(self, sequence: Sequence) -> bool:
        def count_found() -> int:
            return self._cache.match_length(sequence.namespace, sequence.tokens[:-1].tobytes())

        return has_leader(sequence, self.running, count_found)

    def _land(self) -> None:
        assert self._is_in_flight, "no step is in flight"
        self._is_in_flight = False
        self._cache.finish_copies()

    def _commit(self, span: Span) -> None:
        sequence, lease = span.sequence, span.sequence.held_lease
        sequence.num_computed = span.end
        self._cache.commit(lease, sequence.tokens[lease.num_committed : span.end].tobytes())
        num_prompt_tokens = min(span.end, sequence.num_prompt_tokens) - span.start
        self.counters.num_computed_prompt_tokens += max(0, num_prompt_tokens)

    def _take(self, sequence: Sequence, draw: Draw, now: float) -> Outcome:
        sampling = sequence.sampling
        if sequence.num_drawn == 0:
            self._start_forks(sequence)
        self.counters.num_generated_tokens += 1
        finish_reason: FinishReason | None = None
        if draw.token_id in sampling.stop_token_ids and sequence.num_drawn >= sampling.min_tokens:
            finish_reason = "stop"
        else:
            sequence.tokens.append(draw.token_id)
            if sequence.num_drawn >= sampling.max_tokens:
                finish_reason = "length"
        if finish_reason is not None:
            self.running.remove(sequence)
            self._end([sequence], now)
            self.counters.num_finished += 1
        return Outcome(sequence, draw, finish_reason)

    def _start_forks(self, leader: Sequence) -> None:
        """The prompt is computed and committed: the other choices match it, and compute its last token only.

        What the cache had of it is what it had when the leader came.
        """
        forks = self._forks.pop(leader.request_id, [])
        for fork in forks:
            fork.num_cached, fork.explanation = leader.num_cached, leader.explanation
        self.waiting.extendleft(reversed(forks))

    def _take_out(self, request_id: str, choice: int | None) -> list[Sequence]:
        """Remove sequences from every queue; if the choice with the prompt goes, the next one leads."""

        def is_meant(sequence: Sequence) -> bool:
            return sequence.request_id == request_id and choice in (None, sequence.choice)

        forks = self._forks.pop(request_id, [])
        gone = [sequence for sequence in (*self.running, *self.waiting, *forks) if is_meant(sequence)]
        self.running = [sequence for sequence in self.running if not is_meant(sequence)]
        self.waiting = deque(sequence for sequence in self.waiting if not is_meant(sequence))
        staying = [sequence for sequence in forks if not is_meant(sequence)]
        if staying and all(leader.request_id != request_id for leader in (*self.running, *self.waiting)):
            self.waiting.appendleft(staying.pop(0))
        if staying:
            self._forks[request_id] = staying
        return gone

    def _end(self, sequences: Iterable[Sequence], now: float) -> None:
        for sequence in sequences:
            sequence.status = Status.FINISHED
            if self._is_in_flight:
                self._leaving.append(sequence)
            else:
                self._release(sequence, now)

    def _release_leaving(self, now: float) -> None:
        for sequence in self._leaving:
            self._release(sequence, now)
        self._leaving.clear()

    def _release(self, sequence: Sequence, now: float) -> None:
        if sequence.lease is not None:
            self._cache.release(sequence.lease, now)
            sequence.lease = None
