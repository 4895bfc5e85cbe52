"""The engine's heart: inbox, schedule, run, apply, events. The only owner of scheduler, runner and clock.

One thread calls it; steps may be carried out on another. It knows nothing of sockets; service.py carries its
messages.
"""

import time
from array import array
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.cache_service import CacheService, report_of
from engine.errors import RequestRefused
from engine.grammars import Grammars
from engine.lookahead import Lookahead
from engine.messages import (
    Abort,
    Accepted,
    EngineInfo,
    EngineStats,
    FromEngine,
    Quota,
    Refused,
    Submit,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
)
from engine.moves import ColderTiers
from engine.pace import StepPace
from engine.scheduler import Limits, Scheduler
from engine.sequence import MAX_BEAM_WIDTH, MAX_TOP_LOGPROBS
from engine.statistics import Statistics
from engine.step import Draw, Outcome, Step, StepResult
from engine.stepping import InlineStepper, Stepper
from engine.traffic import Traffic
from prefix_cache.assembly import CacheSizes, assemble
from prefix_cache.figures import BlockAges
from prefix_cache.learned import Learned
from prefix_cache.lease import Retention
from prefix_cache.quota import Account, account_of
from prefix_cache.swap import SwapMode, SwapRates
from prefix_cache.tiers import TieredCache

__all__ = ["CoreOptions", "EngineCore", "Runner"]

_WAIT_SECONDS = 0.002  # messages are looked at this often while all work waits for blocks
_MIN_MEASURED = 64  # prompt tokens in a step whose time says something about prefill
_MIN_RETRY_SECONDS = 1.0


class Runner(Protocol):
    """Whatever computes a step: the model on its device, or a test's double."""

    @property
    def info(self) -> EngineInfo:
        """The model's limits and the pool's size."""
        ...

    def run(self, step: Step) -> StepResult:
        """Carry out the step's copies, then its spans; draw where a span ends its sequence."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """How the cache is kept and tenants are served; see EngineConfig."""

    disk_for_all: bool = False
    park_after: float | None = None  # seconds
    swap: SwapMode = "auto"
    eviction: Literal["lru", "learned"] = "lru"
    quotas: Mapping[Account, Quota] = field(default_factory=dict)
    weights: Mapping[Account, float] = field(default_factory=dict)


class EngineCore:
    """Runs requests step by step, while blocks move between tiers beside the steps."""

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        *,
        tiers: ColderTiers | None = None,
        options: CoreOptions | None = None,
        stepper: Stepper | None = None,
        pace: StepPace | None = None,
        lookahead: Lookahead | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """Without `pace`, a step may compute all that `limits` allow. Raises ValueError when the tenants'
        floors leave no room for a request.
        """
        info, options = runner.info, options or CoreOptions()
        self.info = info
        self._clock = clock
        self._grammars = grammars
        self._stepper = stepper or InlineStepper(runner.run)
        self._rates = _swap_rates(info, tiers, options)
        self.cache, ages = _assemble(info, tiers, options, self._rates, clock())
        self.cache.counters.num_damaged_blocks = 0 if tiers is None else tiers.num_damaged
        self.scheduler = Scheduler(self.cache, limits, weights=options.weights, lookahead=lookahead)
        self.answers = CacheService(
            self.cache, info.kv_bytes // info.num_blocks, tiers.fingerprint if tiers is not None else b""
        )
        self._traffic = Traffic(self.cache, tiers, self._rates) if tiers is not None else None
        self._pace = pace or StepPace(0.0, {})
        self._has_pace = pace is not None
        self._statistics = Statistics(
            self.scheduler,
            self.cache,
            traffic=self._traffic,
            rates=self._rates,
            ages=ages,
            pace=self._pace,
        )
        self._running: tuple[Step, float] | None = None  # the step in flight, and when it began

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self.scheduler.has_work

    @property
    def is_running(self) -> bool:
        """Whether a step is in flight: `finish` is due."""
        return self._running is not None

    @property
    def is_step_done(self) -> bool:
        """Whether `finish` would not wait."""
        return self._running is not None and self._stepper.is_done

    @property
    def now(self) -> float:
        """The clock by which everything here goes, in seconds."""
        return self._clock()

    @property
    def is_moving(self) -> bool:
        """Whether blocks are on their way between tiers, so that `tend` should be called soon."""
        return self._traffic is not None and self._traffic.is_moving

    @property
    def is_erasing(self) -> bool:
        """Whether records of the disk are not gone yet that should be."""
        return self._traffic is not None and self._traffic.is_erasing

    def submit(self, message: Submit) -> Accepted | Refused:
        """Queue a request, or say why it cannot run, or not now. One whose grammar is not prepared keeps
        everything waiting until it is.
        """
        prompt = array("i")
        try:
            prompt.frombytes(message.prompt)
            self._check(prompt, message)
            if (prepared := self.prepare(message)) is not None:
                fault = prepared.exception()
                if isinstance(fault, ValueError):
                    return Refused(message.request_id, str(fault), "grammar")
                prepared.result()
            if self.scheduler.admission.is_full(account_of(message.namespace), len(prompt)):
                return self._refuse_full(message)
            self.scheduler.add(
                message.request_id,
                prompt,
                message.sampling,
                message.namespace,
                message.num_choices,
                Retention(message.is_side, message.persists, message.priority),
                queue_priority=message.queue_priority,
                now=self._clock(),
            )
        except (RequestRefused, ValueError) as error:
            return Refused(message.request_id, str(error), "refused")
        return Accepted(message.request_id)

    def prepare(self, message: Submit) -> "Future[None] | None":
        """Begin to compile a request's grammar, which may take long; None if there is nothing to compile.
        Ends in ValueError for one that cannot be followed.
        """
        grammar = message.sampling.grammar
        return None if grammar is None or self._grammars is None else self._grammars.prepare(grammar)

    def abort(self, message: Abort) -> None:
        """Forget a request, or one of its choices."""
        self.scheduler.abort(message.request_id, message.choice, self._clock())

    def tend(self) -> list[FromEngine]:
        """What is to be done now and then, work or no work: take in what has moved, move on, and refuse what
        has waited too long.
        """
        now = self._clock()
        self.cache.tend(now)
        if self._traffic is not None:
            if self._traffic.take_arrivals(now):
                self.scheduler.resume_loaded()
            self._traffic.send(now, is_busy=self.has_work)
        late = self.scheduler.expire(now)
        self._statistics.num_waited_too_long += len(late)
        return [
            Refused(
                request_id,
                "the request did not begin in the time that requests may wait: too much is asked at once",
                "waited_too_long",
                self._seconds_to_clear(None),
            )
            for request_id in late
        ]

    def step(self) -> list[FromEngine]:
        """Compute one step; returns what it brought. A step that fails ends its requests and nothing else."""
        if not self.begin():
            self.rest()
            return []
        self.look_ahead()
        return self.finish()

    def begin(self) -> bool:
        """Begin the next step; False if all that there is waits for blocks."""
        budget = self._pace.budget() if self._has_pace else None
        step = self.scheduler.schedule(self._clock(), budget)
        if self._traffic is not None:
            # What admission has planned moves while the step runs.
            self._traffic.send(self._clock(), is_busy=step is not None)
        if step is None:
            return False
        self._running = step, self._clock()
        self._stepper.launch(step)
        return True

    def look_ahead(self) -> None:
        """Prepare the step after the one in flight, as far as that can be done before its result is there."""
        self.scheduler.look_ahead(self._clock(), self._pace.budget() if self._has_pace else None)

    def rest(self) -> None:
        """Nothing can run: wait a moment for blocks that move."""
        if self._traffic is not None:
            self._traffic.wait(_WAIT_SECONDS)

    def finish(self) -> list[FromEngine]:
        """Wait for the step in flight; returns what it brought."""
        assert self._running is not None, "no step is in flight"
        (step, started), self._running = self._running, None
        try:
            result = self._stepper.result()
        except Exception as error:  # noqa: BLE001 - whatever a device throws must not end other requests
            gone = self.scheduler.abandon(step, self._clock())
            reason = f"the step that computed this request failed: {type(error).__name__}"
            return [
                Refused(request_id, reason, "failed")
                for request_id in sorted({sequence.request_id for sequence in gone})
            ]
        ended = self._clock()
        self._note_time(step, ended - started)
        refused = self._give_up(step, result, ended)
        outcomes = self.scheduler.apply(step, result, ended)
        self._statistics.note_step()
        return [*refused, *([TokenEvents([_to_event(outcome) for outcome in outcomes])] if outcomes else [])]

    def stats(self) -> EngineStats:
        """The figures as of the last step."""
        return self._statistics.collect(self.scheduler.admission)

    def close(self) -> None:
        """Let go of the colder tiers, and of whoever follows grammars."""
        if self._traffic is not None:
            self._traffic.close()
        if self._grammars is not None:
            self._grammars.close()

    def _give_up(self, step: Step, result: StepResult, now: float) -> list[FromEngine]:
        """End the requests of which a sequence cannot go on."""
        failures = {
            span.sequence.request_id: brought.failure
            for span, brought in zip(step.spans, result.spans, strict=True)
            if brought.failure is not None
        }
        for request_id in failures:
            self.scheduler.abort(request_id, None, now)
        return [Refused(request_id, failure, "grammar") for request_id, failure in failures.items()]

    def _note_time(self, step: Step, seconds: float) -> None:
        if self._has_pace:
            self._pace.note(step.num_tokens, seconds)
        num_prompt_tokens = sum(span.end - span.start for span in step.spans if not span.is_decode)
        if num_prompt_tokens >= _MIN_MEASURED and num_prompt_tokens > 0.9 * step.num_tokens:
            self._rates.note_prefill(num_prompt_tokens, seconds)

    def _refuse_full(self, message: Submit) -> Refused:
        self._statistics.num_queue_full += 1
        return Refused(
            message.request_id,
            "too many of your requests wait already, or too much text in them",
            "queue_full",
            self._seconds_to_clear(account_of(message.namespace)),
        )

    def _seconds_to_clear(self, account: Account | None) -> float:
        """About how long it takes to compute the prompts that wait, of one tenant or of all."""
        waiting = self.scheduler.admission.waiting
        num_tokens = sum(each.num_missing for each in waiting if account in (None, each.account))
        budget = self._pace.budget()
        if not self._has_pace or budget is None:
            return _MIN_RETRY_SECONDS
        return max(num_tokens / budget * self._pace.seconds(budget), _MIN_RETRY_SECONDS)

    def _check(self, prompt: "array[int]", message: Submit) -> None:
        num_tokens = len(prompt) + message.sampling.max_tokens
        if num_tokens > self.info.context_length:
            raise RequestRefused(
                f"{len(prompt)} prompt tokens and {message.sampling.max_tokens} new ones exceed the model's "
                f"context of {self.info.context_length}"
            )
        self._check_values(message)
        ids = (*message.sampling.logit_bias, *message.sampling.stop_token_ids)
        if prompt and (min(prompt) < 0 or max(prompt) >= self.info.vocab_size):
            raise RequestRefused(f"the prompt holds ids outside the vocabulary of {self.info.vocab_size}")
        if any(not 0 <= token_id < self.info.vocab_size for token_id in ids):
            raise RequestRefused(f"a token id lies outside the vocabulary of {self.info.vocab_size}")

    def _check_values(self, message: Submit) -> None:
        """Refuse what would make a step fail, and others' requests with it."""
        sampling = message.sampling
        if self.scheduler.is_known(message.request_id):
            raise RequestRefused("a request of this id runs already")
        if not 0 <= sampling.seed < 1 << 64:
            raise RequestRefused("a seed has 64 bits")
        counts = [each for each in (sampling.logprobs, sampling.prompt_logprobs) if each is not None]
        if any(not 0 <= count <= MAX_TOP_LOGPROBS for count in counts):
            raise RequestRefused(f"log-probabilities are told of 0 to {MAX_TOP_LOGPROBS} tokens at a place")
        if sampling.grammar is not None and self._grammars is None:
            raise RequestRefused("this engine was started without a vocabulary, which grammars need")
        if sampling.grammar is not None and (sampling.beam is not None or sampling.min_tokens):
            raise RequestRefused("a grammar goes neither with a search nor with a least number of tokens")
        beam = sampling.beam
        if beam is not None and not (1 <= beam.width <= MAX_BEAM_WIDTH and abs(beam.length_penalty) <= 10):
            raise RequestRefused(
                f"a search follows 1 to {MAX_BEAM_WIDTH} hypotheses, with a length penalty between -10 and 10"
            )
        if beam is not None and message.num_choices > beam.width:
            raise RequestRefused("a search has no more answers than hypotheses")


def _to_event(outcome: Outcome) -> TokenEvent:
    sequence = outcome.sequence
    return TokenEvent(
        request_id=sequence.request_id,
        choice=outcome.choice,
        token_ids=[draw.token_id for draw in outcome.draws],
        logprobs=_logprobs(outcome.draws) if sequence.sampling.logprobs is not None else None,
        finish_reason=outcome.finish_reason,
        stop_token_id=outcome.stop_token_id,
        num_cached_tokens=sequence.num_cached or 0,
        cache=report_of(sequence) if outcome.is_first else None,
        prompt_logprobs=_logprobs(outcome.prompt_logprobs) if outcome.prompt_logprobs else None,
    )


def _logprobs(draws: tuple[Draw, ...]) -> list[TokenLogprob] | None:
    return [TokenLogprob(draw.logprob, list(draw.top)) for draw in draws if draw.logprob is not None] or None


def _swap_rates(info: EngineInfo, tiers: ColderTiers | None, options: CoreOptions) -> SwapRates:
    return SwapRates(
        info.kv_bytes / (info.num_blocks * info.block_size),
        {} if tiers is None else dict(tiers.rates),
        prefill_rate=None if tiers is None else tiers.prefill_rate,
        mode=options.swap,
    )


def _assemble(
    info: EngineInfo, tiers: ColderTiers | None, options: CoreOptions, rates: SwapRates, now: float
) -> tuple[TieredCache, BlockAges]:
    sizes = CacheSizes(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        num_host_blocks=0 if tiers is None else tiers.num_host_blocks,
        num_disk_blocks=0 if tiers is None else tiers.num_disk_blocks,
        max_request_tokens=info.max_request_tokens,
        quotas=options.quotas,
    )
    policy = Learned(info.num_blocks, info.block_size) if options.eviction == "learned" else None
    return assemble(
        sizes,
        policy=policy,
        remembers=policy.history if policy is not None else None,
        rates=rates,
        fingerprint=b"" if tiers is None else tiers.fingerprint,
        records={} if tiers is None else tiers.records,
        disk_for_all=options.disk_for_all,
        park_after=options.park_after,
        now=now,
    )
