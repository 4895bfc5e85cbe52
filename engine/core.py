"""The engine's heart: inbox, schedule, run, apply, events. The only owner of scheduler, runner and clock.

One thread calls it. It knows nothing of sockets; service.py carries its messages.
"""

import time
from array import array
from collections.abc import Callable
from typing import Protocol

from engine.errors import RequestRefused
from engine.messages import (
    Abort,
    EngineInfo,
    EngineStats,
    FromEngine,
    Refused,
    Submit,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
)
from engine.scheduler import Limits, Scheduler
from engine.step import Outcome, Step, StepResult
from prefix_cache.tree import PrefixCache

__all__ = ["EngineCore", "Runner"]


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


class EngineCore:
    """Runs requests step by step."""

    def __init__(self, runner: Runner, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        info = runner.info
        self.info = info
        self.cache = PrefixCache(info.num_blocks, info.block_size)
        self.scheduler = Scheduler(self.cache, limits)
        self._runner = runner
        self._clock = clock
        self._waste = _Waste()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self.scheduler.has_work

    def submit(self, message: Submit) -> Refused | None:
        """Queue a request, or say why it can never run."""
        prompt = array("i")
        try:
            prompt.frombytes(message.prompt)
            self._check(prompt, message)
            self.scheduler.add(
                message.request_id, prompt, message.sampling, message.namespace, message.num_choices
            )
        except (RequestRefused, ValueError) as error:
            return Refused(message.request_id, str(error), "refused")
        return None

    def abort(self, message: Abort) -> None:
        """Forget a request, or one of its choices."""
        self.scheduler.abort(message.request_id, message.choice, self._clock())

    def step(self) -> list[FromEngine]:
        """Compute one step; returns what it brought. A step that fails ends its requests and nothing else."""
        step = self.scheduler.schedule(self._clock())
        if step is None:
            return []
        try:
            result = self._runner.run(step)
        except Exception as error:  # noqa: BLE001 - whatever a device throws must not end other requests
            gone = self.scheduler.abandon(step, self._clock())
            reason = f"the step that computed this request failed: {type(error).__name__}"
            return [
                Refused(request_id, reason, "failed")
                for request_id in sorted({sequence.request_id for sequence in gone})
            ]
        outcomes = self.scheduler.apply(step, result, self._clock())
        self._waste.note(self.scheduler.held_tokens(), self.cache.ledger.num_held * self.cache.block_size)
        return [TokenEvents([_to_event(outcome) for outcome in outcomes])] if outcomes else []

    def stats(self) -> EngineStats:
        """The figures as of the last step."""
        ledger, counters = self.cache.ledger, self.scheduler.counters
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_blocks=self.cache.num_blocks,
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
            num_copied_blocks=self.cache.num_copied,
            kv_waste_mean=self._waste.mean,
            kv_waste_max=self._waste.max,
        )

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
    )
