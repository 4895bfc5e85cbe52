"""The same long prompt asked again: the tokens are the same, and computing it is left out."""

import time
from array import array
from dataclasses import dataclass

import torch

from engine.scheduler import Limits, Scheduler
from engine.sequence import SamplingParams
from engine.step import Draw
from prefix_cache.assembly import CacheSizes, assemble
from scripts.gpu_check.judge import Meter
from scripts.gpu_check.model import Model
from scripts.gpu_check.row import Row
from scripts.gpu_check.shapes import StepShapes

__all__ = ["CACHE", "Asked", "ask", "cache_rows", "disagreement", "make_scheduler"]

CACHE = "first token"
_CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # log-probabilities that orders of sums may swap


@dataclass(frozen=True, slots=True)
class Asked:
    """How one request went."""

    first_token: float  # seconds until it was there
    draws: tuple[Draw, ...]
    num_cached: int  # tokens of the prompt


def make_scheduler(model: Model, steps: StepShapes) -> Scheduler:
    """Over an empty cache. A prompt is one step."""
    info = model.info
    cache, _ = assemble(CacheSizes(num_blocks=info.num_blocks, block_size=info.block_size))
    return Scheduler(cache, Limits(max_batch_tokens=steps.asked, max_sequences=1))


def ask(scheduler: Scheduler, model: Model, prompt: list[int], namespace: bytes, num_tokens: int) -> Asked:
    """One greedy request from its beginning to its end; nobody else is there."""
    runner, started = model.runner(is_recorded=True), time.perf_counter()
    first_token, draws = 0.0, list[Draw]()
    cached_before = scheduler.counters.num_cached_tokens
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, logprobs=2)
    scheduler.add("request", array("i", prompt), sampling, namespace, 1)
    while scheduler.has_work:
        step = scheduler.schedule(time.perf_counter())
        assert step is not None, "one request alone never waits"
        outcomes = scheduler.apply(step, runner.run(step), time.perf_counter())
        for outcome in outcomes:
            first_token = first_token or time.perf_counter() - started
            draws += outcome.draws
    return Asked(first_token, tuple(draws), scheduler.counters.num_cached_tokens - cached_before)


def cache_rows(model: Model, steps: StepShapes, meter: Meter | None) -> list[Row]:
    """Where nothing is to be found, where it was just computed, and where nobody else may see it."""
    scheduler = make_scheduler(model, steps)
    prompts = [[(factor * place + 1) % 89 for place in range(steps.asked)] for factor in (3, 5)]
    ask(scheduler, model, prompts[0], b"warm", steps.num_answered)  # what is compiled late is compiled now
    kinds = (("cold", b"a"), ("cached", b"a"), ("cold, another's", b"b"))
    answers = [ask(scheduler, model, prompts[1], name, steps.num_answered) for _, name in kinds]
    scheduler.check_invariants()
    close = _CLOSE[model.pool.keys.dtype]
    expected_cached = (0, steps.asked - 1, 0)  # the last token is computed for its logits
    rows = []
    for (kind, _), answer, num_cached in zip(kinds, answers, expected_cached, strict=True):
        num_same, error = disagreement(answers[0].draws, answer.draws, close)
        is_found = answer.num_cached == num_cached
        row = Row.judged(
            CACHE,
            f"prompt of {steps.asked:,}, {kind}",
            None,
            error=error if is_found else float("inf"),
            bound=close,
            note=f"{answer.num_cached:,} tokens cached; {num_same} of {len(answer.draws)} drawn compared",
        )
        if meter is not None and not row.is_bad:
            share = answer.first_token / answers[0].first_token
            row = row.timed(1e6 * answer.first_token, meter[1], rate=f"{share:.1%} of cold")
        rows.append(row)
    return rows


def disagreement(first: tuple[Draw, ...], second: tuple[Draw, ...], close: float) -> tuple[int, float]:
    """How many places were compared, and the greatest difference of a best log-probability among them.

    Another token is an infinite one, unless the two best were closer than that: what follows then is
    another text, and is not compared.
    """
    if len(first) != len(second):
        return 0, float("inf")
    worst = 0.0
    for place, (one, other) in enumerate(zip(first, second, strict=True)):
        (_, best), (_, next_best) = one.top
        worst = max(worst, abs(best - other.top[0][1]))
        if one.token_id != other.token_id:
            return place + 1, worst if best - next_best < close else float("inf")
    return len(first), worst
