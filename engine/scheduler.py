"""Which tokens of which sequences the next step computes, and what its result means. No tensor, no clock.

`schedule` chooses and reserves, `apply` moves state, `abort` and `abandon` take sequences out. A step is
token counts by sequence, so chunked prefill, cache hits, decoding and verifying proposals are one loop. The
oldest sequence always gets its blocks, at the youngest's expense, so work never stalls. Preempting is
forgetting: the blocks stay cached and are matched again. Who starts is admission.py's to say; what a result
means for one sequence, landing.py's; for a beam search, beaming.py's.
"""

from array import array
from collections.abc import Iterable, Mapping
from itertools import islice

from engine.admission import Admission, Limits
from engine.beaming import Beaming
from engine.counters import Counters
from engine.departures import Departures
from engine.errors import RequestRefused
from engine.landing import Landing
from engine.lookahead import Lookahead, NoLookahead
from engine.running import RunningSet
from engine.sequence import SamplingParams, Sequence, Status
from engine.step import Outcome, Step, StepPlan, StepResult, enough_of_prompts
from prefix_cache.lease import PLAIN, Retention
from prefix_cache.quota import Account
from prefix_cache.tiers import TieredCache

__all__ = ["Limits", "Scheduler"]

_MIN_CHUNK = 64  # prompt tokens that a step computes beside answers, however long they make it


class Scheduler:
    """Waiting and running sequences over one cache."""

    def __init__(
        self,
        cache: TieredCache,
        limits: Limits,
        *,
        weights: Mapping[Account, float] | None = None,
        lookahead: Lookahead | None = None,
    ) -> None:
        self.counters = Counters()
        self.running = RunningSet()
        self.admission = Admission(cache, limits, self.running, weights or {})
        self._cache = cache
        self._limits = limits
        self._lookahead = lookahead or NoLookahead()
        self._beaming = Beaming(cache, limits, self.running, self.admission)
        self._landing = Landing(
            cache, self.counters, self.admission.shares, self._lookahead, note_candidates=self._beaming.note
        )
        self._departures = Departures(cache, self._lookahead)
        self._num_added = 0
        self._has_news = True  # something has come or ended since newcomers were last looked at
        self._made_way_in_vain = False  # and nothing has ended since

    @property
    def num_waiting(self) -> int:
        """Sequences that wait."""
        return len(self.admission.waiting)

    @property
    def num_loading(self) -> int:
        """Running sequences whose blocks are on their way from colder tiers."""
        return sum(sequence.status is Status.LOADING for sequence in self.running)

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return self.num_waiting > 0 or len(self.running) > 0

    def add(
        self,
        request_id: str,
        prompt: "array[int]",
        sampling: SamplingParams,
        namespace: bytes,
        num_choices: int,
        retention: Retention = PLAIN,
        *,
        queue_priority: int = 0,
        now: float = 0.0,
    ) -> None:
        """Queue a request. With a beam search, `num_choices` is how many answers are wanted of it. Raises
        RequestRefused when it could never run.
        """
        self._refuse_impossible(len(prompt), sampling, namespace, num_choices)
        self._num_added += 1
        self._has_news = True
        num_sequences = 1 if sampling.beam is not None else num_choices
        first, *forks = (
            Sequence(
                request_id,
                choice,
                array("i", prompt),
                len(prompt),
                sampling,
                namespace,
                retention,
                queue_priority,
                order=self._num_added,
                arrived=now,
            )
            for choice in range(num_sequences)
        )
        if sampling.beam is not None:
            self._beaming.begin(first, num_choices)
        self.admission.add(first)
        self.admission.hold_back(request_id, forks)

    def is_known(self, request_id: str) -> bool:
        """Whether a request waits or runs."""
        return any(each.request_id == request_id for each in (*self.running, *self.admission.waiting))

    def progress(self, request_id: str) -> int:
        """How many tokens of a running request's prompt are there; of what waits or is not known, none."""
        running = [each for each in self.running if each.request_id == request_id]
        return max((min(each.num_computed, each.num_prompt_tokens) for each in running), default=0)

    def resume_loaded(self) -> None:
        """Let sequences run whose blocks have arrived. To be called when transfers have ended."""
        for sequence in self.running:
            if sequence.status is Status.LOADING and not self._cache.is_loading(sequence.held_lease):
                sequence.status = Status.RUNNING
                self._note_match(sequence)

    def schedule(self, now: float, budget: int | None = None) -> Step | None:
        """Choose and reserve the next step; None if there is none. Every step must be applied or abandoned.

        `budget` bounds the tokens of a step in which answers grow, though each grows by one.
        """
        assert not self._departures.is_in_flight, "a step is in flight already"
        plan = self._new_plan(self._limits.max_batch_tokens)
        has_made_way = self._make_way(plan, now)
        self._continue_running(plan, now, budget)
        if not self._cache.is_pressed:
            self._admit(plan, now)
        # Where the place went back to whoever gave it up, the other one lacks blocks.
        self._made_way_in_vain = self._made_way_in_vain or (
            has_made_way and self.admission.wants_way() is not None
        )
        if not plan.spans and not self._cache.num_moving:
            self._help_oldest(plan, now)
        if not plan.spans:
            return None
        self._departures.is_in_flight = True
        return Step(tuple(plan.spans.values()), self._cache.take_copies())

    def look_ahead(self, now: float, budget: int | None = None) -> None:
        """While a step runs: start what the next one can start if nobody need give way for it."""
        assert self._departures.is_in_flight, "there is nothing to look ahead of"
        if self._cache.is_pressed or self._departures or not self._has_news:
            return  # what ends with the step will be found, and its blocks are free, when it has landed
        self._has_news = False
        num_planned = sum(max(sequence.num_missing, 1) for sequence in self.running)
        limit = self._limits.max_batch_tokens if budget is None else budget
        self._admit(self._new_plan(max(limit - num_planned, 0)), now)

    def apply(self, step: Step, result: StepResult, now: float) -> list[Outcome]:
        """Take in what a step computed: append its tokens, commit its blocks, end what has ended."""
        self._land()
        self._has_news = True
        self.counters.num_steps += 1
        outcomes = []
        for span, brought in zip(step.spans, result.spans, strict=True):
            sequence = span.sequence
            if brought.draws and sequence.num_drawn == 0 and sequence.status is Status.RUNNING:
                self.admission.add_forks(sequence)
            outcome = self._landing.take(span, brought)
            if outcome is None:
                continue
            outcomes.append(outcome)
            if outcome.finish_reason is not None:
                self.running.remove(sequence)
                self._end([sequence], now)
                self.counters.num_finished += 1
        outcomes += self._play_rounds(now)
        self._departures.release_leaving(now)
        return outcomes

    def abandon(self, step: Step, now: float) -> list[Sequence]:
        """A step has failed: forget its sequences and all choices of their requests. Returns them."""
        self._land()
        lost = {span.sequence.request_id for span in step.spans}
        gone = [sequence for request_id in lost for sequence in self._take_out(request_id, None)]
        self._end(gone, now)
        self._departures.release_leaving(now)
        return gone

    def abort(self, request_id: str, choice: int | None, now: float) -> None:
        """End a request, or one of its choices. Blocks that a step in flight uses come home with it."""
        gone = self._take_out(request_id, choice)
        self.counters.num_aborted += len(gone)
        self._end(gone, now)

    def expire(self, now: float) -> list[str]:
        """Forget requests that have waited too long to begin; returns their ids."""
        late = list(dict.fromkeys(sequence.request_id for sequence in self.admission.overdue(now)))
        for request_id in late:
            self._end(self._take_out(request_id, None), now)
        return late

    def held_tokens(self) -> int:
        """Tokens that lie in held blocks, shared ones once."""
        return self._cache.num_held_tokens(
            (sequence.lease, sequence.num_computed) for sequence in self.running if sequence.lease
        )

    def check_invariants(self) -> None:
        """Assert that blocks and leases agree; for tests and idle moments."""
        held = [*self.running, *self._departures]
        self._cache.check_invariants(sequence.lease for sequence in held if sequence.lease is not None)
        waiting = self.admission.waiting
        assert all(sequence.lease is None for sequence in waiting), "who waits holds nothing"

    def _refuse_impossible(
        self, num_prompt_tokens: int, sampling: SamplingParams, namespace: bytes, num_choices: int
    ) -> None:
        least = 0 if sampling.beam is None else 1
        if num_prompt_tokens < 1 or sampling.max_tokens < least or num_choices < 1:
            raise RequestRefused("a request needs a prompt and a choice, and a search a token to search for")
        capacity = self._cache.device.ledger.ceiling_of(namespace) * self._cache.block_size
        if num_prompt_tokens + sampling.max_tokens > capacity:
            raise RequestRefused(
                f"{num_prompt_tokens} prompt tokens and {sampling.max_tokens} new ones exceed the {capacity} "
                "that there is memory for"
            )

    def _make_way(self, plan: StepPlan, now: float) -> bool:
        """All places taken, and a tenant waits with less than its share: one who has more gives one up."""
        account = None if self._made_way_in_vain else self.admission.wants_way()
        victim = None if account is None else self.admission.who_gives_way(account)
        if victim is None or victim.status is not Status.RUNNING:
            return False
        self._preempt(victim, plan, now)
        return True

    def _continue_running(self, plan: StepPlan, now: float, budget: int | None) -> None:
        """Decodes first, a token each and what may be proposed; then the rest of prompts, those of the tenant
        first that was served least.
        """
        ready = [each for each in self.running if each.status is Status.RUNNING and each.num_missing]
        decodes = [sequence for sequence in ready if sequence.num_missing == 1]
        for num_done, sequence in enumerate(decodes):
            self._plan_decode(sequence, plan, now, num_others=len(decodes) - num_done - 1)
        if decodes and budget is not None:
            num_used = self._limits.max_batch_tokens - plan.budget
            plan.budget = min(plan.budget, max(budget - num_used, _MIN_CHUNK))
        prompts = [sequence for sequence in ready if sequence.num_missing > 1]
        for sequence in sorted(prompts, key=lambda each: self.admission.shares.served(each.account)):
            if plan.has_prompts:
                break
            num_tokens = min(sequence.num_missing, plan.budget)
            if num_tokens > 0 and self._grow_or_preempt(
                sequence, sequence.num_computed + num_tokens, plan, now
            ):
                plan.add(sequence, num_tokens)

    def _new_plan(self, budget: int) -> StepPlan:
        """An empty one. What prompts lack that wait is known as far as they were looked up in the cache."""
        sizes = [sequence.num_missing for sequence in self.running if sequence.num_missing > 1]
        num_places = max(self._limits.max_sequences - len(self.running), 0)
        sizes += [sequence.num_missing for sequence in islice(self.admission.waiting, num_places)]
        return StepPlan(budget, enough_of_prompts(sizes))

    def _plan_decode(self, sequence: Sequence, plan: StepPlan, now: float, *, num_others: int) -> None:
        """`num_others` decodes are still to come, and each is to have its token."""
        num_lookahead = 0
        if sequence.num_drawn > 0 and sequence.sampling.beam is None:
            num_lookahead = min(
                self._lookahead.num_tokens(sequence, len(self.running)),
                sequence.sampling.max_tokens - sequence.num_drawn - 1,
                plan.budget - num_others - 1,
            )
        if not (
            num_lookahead > 0
            and sequence.lease is not None
            and self._cache.can_grow(sequence.lease, sequence.num_tokens + num_lookahead)
        ):
            num_lookahead = 0
        if self._grow_or_preempt(sequence, sequence.num_tokens + num_lookahead, plan, now):
            plan.add(sequence, 1, num_lookahead)

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
            is_capped = self._cache.device.ledger.is_capped(sequence.namespace)
            self._preempt(self.running.youngest(sequence.account if is_capped else None), plan, now)
        return False

    def _preempt(self, sequence: Sequence, plan: StepPlan, now: float) -> None:
        plan.drop(sequence)
        self.running.remove(sequence)
        self._departures.preempt(sequence, now)
        if not self._beaming.is_idle(sequence):
            self.admission.add(sequence)
        self.counters.num_preemptions += 1

    def _admit(self, plan: StepPlan, now: float) -> None:
        for sequence in self.admission.admit(plan, now):
            if sequence.status is Status.RUNNING:
                self._note_match(sequence)

    def _help_oldest(self, plan: StepPlan, now: float) -> None:
        """Nothing can run: all that hold blocks are hypotheses that wait for others of their search. Let the
        oldest sequence that waits start, at their expense.
        """
        sequence = self.admission.waiting.oldest()
        while sequence is not None and len(self.running) > 0:
            self._preempt(self.running.youngest(), plan, now)
            if self.admission.start(sequence, plan, now):
                if sequence.status is Status.RUNNING:
                    self._note_match(sequence)
                return

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

    def _land(self) -> None:
        assert self._departures.is_in_flight, "no step is in flight"
        self._departures.is_in_flight = False
        self._cache.finish_copies()

    def _play_rounds(self, now: float) -> list[Outcome]:
        """Let every search go on whose hypotheses are all computed."""
        outcomes = []
        for group in self._beaming.ready():
            self.counters.num_generated_tokens += len(group.members)
            dropped, news = self._beaming.play(group, now)
            for sequence in dropped:
                if sequence.lease is not None:
                    self.running.remove(sequence)
            self._end(dropped, now)
            self.counters.num_finished += len(news)
            outcomes += news
        self.counters.num_beam_forks = self._beaming.num_forks
        return outcomes

    def _take_out(self, request_id: str, choice: int | None) -> list[Sequence]:
        """Remove a request, or one of its choices, from every queue."""

        def is_meant(sequence: Sequence) -> bool:
            # A search has its answers at its end, all together: it cannot go without one of them.
            return choice is None or (sequence.sampling.beam is None and sequence.choice == choice)

        gone = [each for each in self.running if each.request_id == request_id and is_meant(each)]
        for sequence in gone:
            self.running.remove(sequence)
        gone += self.admission.take_out(request_id, is_meant)
        if gone:
            gone += self._beaming.forget(request_id)
        return gone

    def _end(self, sequences: Iterable[Sequence], now: float) -> None:
        self._made_way_in_vain = False
        self._departures.end(sequences, now)
