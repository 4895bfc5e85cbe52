"""The engine's heart: inbox, schedule, run, apply, events. The only owner of scheduler, runner and clock.

One thread calls it. It knows nothing of sockets; service.py carries its messages.
"""

import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.cache_service import CacheService, report_of
from engine.errors import RequestRefused
from engine.messages import (
    Abort,
    EngineInfo,
    EngineStats,
    FromEngine,
    HistogramStats,
    Quota,
    Refused,
    Submit,
    TierStats,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
)
from engine.moves import ColderTiers
from engine.scheduler import Limits, Scheduler
from engine.step import Outcome, Step, StepResult
from engine.traffic import Traffic
from prefix_cache.assembly import CacheSizes, assemble
from prefix_cache.figures import BOUNDS, BlockAges
from prefix_cache.learned import Learned
from prefix_cache.lease import Retention
from prefix_cache.quota import Account
from prefix_cache.swap import SwapMode, SwapRates
from prefix_cache.tiers import TieredCache
from prefix_cache.tree import PrefixCache

__all__ = ["CacheOptions", "EngineCore", "Runner"]

_WAIT_SECONDS = 0.002  # messages are looked at this often while all work waits for blocks
_MIN_MEASURED = 64  # prompt tokens in a step whose time says something about prefill


class Runner(Protocol):
    """Whatever computes a step: the model on its device, or a test's double."""

    @property
    def info(self) -> EngineInfo:
        """The model's limits and the pool's size."""
        ...

    def run(self, step: Step) -> StepResult:
        """Carry out the step's copies, then its spans; draw where a span ends its sequence."""
        ...


class _Waste:
    """KV waste over steps: 1 - tokens held / slots allocated."""

    def __init__(self) -> None:
        self.last = self.max = self._sum = 0.0
        self._num_steps = 0

    def note(self, num_tokens: int, num_slots: int) -> None:
        self.last = 1.0 - num_tokens / num_slots if num_slots else 0.0
        if num_slots:
            self.max = max(self.max, self.last)
            self._sum += self.last
            self._num_steps += 1

    @property
    def mean(self) -> float:
        return self._sum / self._num_steps if self._num_steps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How the cache is kept; see EngineConfig."""

    disk_for_all: bool = False
    park_after: float | None = None  # seconds
    swap: SwapMode = "auto"
    eviction: Literal["lru", "learned"] = "lru"
    quotas: Mapping[Account, Quota] = field(default_factory=dict)


class EngineCore:
    """Runs requests step by step, while blocks move between tiers beside the steps."""

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        *,
        tiers: ColderTiers | None = None,
        options: CacheOptions | None = None,
    ) -> None:
        """Raises ValueError when the tenants' floors leave no room for a request."""
        info = runner.info
        self.info = info
        self._runner = runner
        self._clock = clock
        self._rates = _swap_rates(info, tiers, options or CacheOptions())
        self.cache, self._ages = _assemble(info, tiers, options or CacheOptions(), self._rates, clock())
        self.cache.counters.num_damaged_blocks = 0 if tiers is None else tiers.num_damaged
        self.scheduler = Scheduler(self.cache, limits)
        self.answers = CacheService(
            self.cache, info.kv_bytes // info.num_blocks, tiers.fingerprint if tiers is not None else b""
        )
        self._traffic = Traffic(self.cache, tiers, self._rates) if tiers is not None else None
        self._waste = _Waste()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self.scheduler.has_work

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

    def submit(self, message: Submit) -> Refused | None:
        """Queue a request, or say why it can never run."""
        prompt = array("i")
        try:
            prompt.frombytes(message.prompt)
            self._check(prompt, message)
            self.scheduler.add(
                message.request_id,
                prompt,
                message.sampling,
                message.namespace,
                message.num_choices,
                Retention(message.is_side, message.persists, message.priority),
            )
        except (RequestRefused, ValueError) as error:
            return Refused(message.request_id, str(error), "refused")
        return None

    def abort(self, message: Abort) -> None:
        """Forget a request, or one of its choices."""
        self.scheduler.abort(message.request_id, message.choice, self._clock())

    def tend(self) -> None:
        """What is to be done between steps, work or no work: take in what has moved, and move on."""
        now = self._clock()
        self.cache.tend(now)
        if self._traffic is not None:
            if self._traffic.take_arrivals(now):
                self.scheduler.resume_loaded()
            self._traffic.send(now, is_busy=self.has_work)

    def step(self) -> list[FromEngine]:
        """Compute one step; returns what it brought. A step that fails ends its requests and nothing else."""
        step = self.scheduler.schedule(self._clock())
        if self._traffic is not None:
            # What admission has planned moves while the step runs.
            self._traffic.send(self._clock(), is_busy=step is not None)
        if step is None:
            if self._traffic is not None:
                self._traffic.wait(_WAIT_SECONDS)  # all that could run waits for blocks
            return []
        started = self._clock()
        try:
            result = self._runner.run(step)
        except Exception as error:  # noqa: BLE001 - whatever a device throws must not end other requests
            gone = self.scheduler.abandon(step, self._clock())
            reason = f"the step that computed this request failed: {type(error).__name__}"
            return [
                Refused(request_id, reason, "failed")
                for request_id in sorted({sequence.request_id for sequence in gone})
            ]
        ended = self._clock()
        num_prompt_tokens = sum(span.end - span.start for span in step.spans if not span.is_decode)
        if num_prompt_tokens >= _MIN_MEASURED and num_prompt_tokens > 0.9 * step.num_tokens:
            self._rates.note_prefill(num_prompt_tokens, ended - started)
        outcomes = self.scheduler.apply(step, result, ended)
        self._waste.note(
            self.scheduler.held_tokens(), self.cache.device.ledger.num_held * self.cache.block_size
        )
        return [TokenEvents([_to_event(outcome) for outcome in outcomes])] if outcomes else []

    def stats(self) -> EngineStats:
        """The figures as of the last step."""
        device, counters, moved = self.cache.device, self.scheduler.counters, self.cache.counters
        ledger = device.ledger
        rates = {
            f"{source.value}>{target.value}": rate for (source, target), rate in self._rates.rates.items()
        }
        if self._rates.prefill_rate is not None:
            rates["prefill"] = self._rates.prefill_rate
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_blocks=device.num_blocks,
            num_free_blocks=ledger.num_free,
            num_cached_blocks=ledger.num_cached,
            num_held_blocks=ledger.num_held,
            kv_waste=self._waste.last,
            num_steps=counters.num_steps,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_cached_tokens=counters.num_cached_tokens,
            num_computed_prompt_tokens=counters.num_computed_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_preemptions=counters.num_preemptions,
            num_finished=counters.num_finished,
            num_aborted=counters.num_aborted,
            num_evicted_blocks=ledger.num_evicted,
            num_copied_blocks=device.num_copied,
            kv_waste_mean=self._waste.mean,
            kv_waste_max=self._waste.max,
            num_found_tokens={tier.value: count for tier, count in counters.num_found_tokens.items()},
            num_loading=self.scheduler.num_loading,
            num_pinned_blocks=ledger.num_pinned,
            num_waiting_writes=self.cache.num_waiting_writes,
            num_promoted_tokens=moved.num_promoted_tokens,
            num_recomputed_tokens=moved.num_recomputed_tokens,
            num_damaged_blocks=moved.num_damaged_blocks,
            num_parked=moved.num_parked,
            is_disk_usable=self._traffic is not None and self._traffic.is_disk_usable,
            tiers={tree.tier.value: _tier_stats(tree) for tree in (device, *self.cache.colder)},
            moves=[] if self._traffic is None else self._traffic.stats,
            rates=rates,
            ages={
                name: HistogramStats(bounds=list(BOUNDS), counts=list(each.counts), total=each.total)
                for name, each in (
                    ("lifetime", self._ages.lifetime),
                    ("idle_before_evict", self._ages.idle_before_evict),
                    ("reuse_gap", self._ages.reuse_gap),
                )
            },
        )

    def close(self) -> None:
        """Let go of the colder tiers."""
        if self._traffic is not None:
            self._traffic.close()

    def _check(self, prompt: "array[int]", message: Submit) -> None:
        num_tokens = len(prompt) + message.sampling.max_tokens
        if num_tokens > self.info.context_length:
            raise RequestRefused(
                f"{len(prompt)} prompt tokens and {message.sampling.max_tokens} new ones exceed the model's "
                f"context of {self.info.context_length}"
            )
        ids = (*message.sampling.logit_bias, *message.sampling.stop_token_ids)
        if prompt and (min(prompt) < 0 or max(prompt) >= self.info.vocab_size):
            raise RequestRefused(f"the prompt holds ids outside the vocabulary of {self.info.vocab_size}")
        if any(not 0 <= token_id < self.info.vocab_size for token_id in ids):
            raise RequestRefused(f"a token id lies outside the vocabulary of {self.info.vocab_size}")


def _to_event(outcome: Outcome) -> TokenEvent:
    sequence, draw = outcome.sequence, outcome.draw
    has_stopped = outcome.finish_reason == "stop"
    logprobs = None
    if draw.logprob is not None and not has_stopped:
        logprobs = [TokenLogprob(draw.logprob, list(draw.top))]
    return TokenEvent(
        request_id=sequence.request_id,
        choice=sequence.choice,
        token_ids=[] if has_stopped else [draw.token_id],
        logprobs=logprobs,
        finish_reason=outcome.finish_reason,
        stop_token_id=draw.token_id if has_stopped else None,
        num_cached_tokens=sequence.num_cached or 0,
        cache=report_of(sequence) if sequence.num_drawn <= 1 else None,
    )


def _tier_stats(tree: PrefixCache) -> TierStats:
    ledger = tree.ledger
    return TierStats(
        num_blocks=tree.num_blocks,
        num_free=ledger.num_free,
        num_cached=ledger.num_cached,
        num_held=ledger.num_held,
        num_evicted=ledger.num_evicted,
    )


def _swap_rates(info: EngineInfo, tiers: ColderTiers | None, options: CacheOptions) -> SwapRates:
    return SwapRates(
        info.kv_bytes / (info.num_blocks * info.block_size),
        {} if tiers is None else dict(tiers.rates),
        prefill_rate=None if tiers is None else tiers.prefill_rate,
        mode=options.swap,
    )


def _assemble(
    info: EngineInfo, tiers: ColderTiers | None, options: CacheOptions, rates: SwapRates, now: float
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
