"""The bare engine in the shapes that a bench asks for: so many conversations of so many tokens, all decoding.

Prompts that only have to be there are not computed: their blocks hold random numbers, since how long a step
takes does not depend on what keys and values say. What is measured is computed by the engine's own loop.
"""

import argparse
import random
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from benchmarks.costs import Costs
from benchmarks.flags import output_file, positive
from engine.core import EngineCore, Runner
from engine.kv_pool import KVPool
from engine.loading import DTYPES, load_runner
from engine.messages import Accepted, EngineConfig, Submit
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.step import Draw, SpanResult, Step, StepResult
from kernels import Kernels

__all__ = [
    "FilledRunner",
    "Served",
    "Shape",
    "add_model",
    "ask",
    "fill_pool",
    "load",
    "random_ids",
    "start",
    "time_steps",
]

WHOLE = 1 << 20  # tokens of a step: any prompt fits into one
NUM_WARM = 3  # steps that are not counted
NAMESPACE = b"bench"


@dataclass(frozen=True, slots=True)
class Served:
    """A model as it is served."""

    runner: ModelRunner
    products: Literal["full", "int8"]
    bytes_per_weight: int

    @property
    def costs(self) -> Costs:
        """What its steps have to read and to compute at least."""
        pool = self.runner.pool
        return Costs(self.runner.decoder.config, self.bytes_per_weight, pool.block_size, pool.bytes_per_block)


@dataclass(frozen=True, slots=True)
class Shape:
    """Conversations that decode together."""

    num_users: int
    context: int  # tokens of each
    num_shared: int = 0  # of which all have the first ones in common

    def __str__(self) -> str:
        shared = f", {self.num_shared:,} shared" if self.num_shared else ""
        return f"{self.num_users} x {self.context:,}{shared}"


class FilledRunner:
    """Computes steps with another runner, or, while `is_computing` is off, only says that it had."""

    def __init__(self, runner: Runner) -> None:
        self.info = runner.info
        self.is_computing = True
        self._runner = runner

    def run(self, step: Step) -> StepResult:
        """As `Runner`. What is not computed draws one token, always the same."""
        if self.is_computing:
            return self._runner.run(step)
        self._runner.run(Step((), step.copies))
        return StepResult(tuple(SpanResult((Draw(0),) if span.draws else ()) for span in step.spans))


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """The flags that `load` reads, and `--json`."""
    parser.add_argument("--model", type=Path, required=required)
    parser.add_argument("--products", choices=("auto", "full", "int8"), default="auto")
    parser.add_argument("--kv-bytes", type=positive, default=1 << 30, help="memory of keys and values")
    parser.add_argument("--json", type=output_file, help="where to write the figures")


def load(options: argparse.Namespace) -> Served:
    """The model that the flags name, in bfloat16. Raises ValueError or OSError when it cannot be had."""
    config = EngineConfig(model=str(options.model), products=options.products, kv_bytes=options.kv_bytes)
    products = options.products
    if products == "auto":
        products = Kernels.best_products(config.device, DTYPES[config.dtype])
    runner = load_runner(config)
    return Served(runner, products, 1 if products == "int8" else DTYPES[config.dtype].itemsize)


def fill_pool(pool: KVPool) -> None:
    """Some number into every block: memory that was never written would be read from one page of zeros."""
    for tensor in (pool.keys, pool.values):
        # Four such bytes are 0.011 as a step of 8-bit codes; a tiny step would slow down what multiplies it.
        tensor.fill_(60 if tensor.dtype == torch.int8 else 1)


def random_ids(num_tokens: int, vocab_size: int, seed: int) -> "array[int]":
    """Tokens of which the first says the seed, so that no two begin alike while seeds are below the
    vocabulary's size.
    """
    rng = random.Random(seed)
    return array(
        "i", [rng.randrange(vocab_size) if place else seed % vocab_size for place in range(num_tokens)]
    )


def ask(core: EngineCore, name: str, ids: "array[int]", max_tokens: int) -> None:
    """Queue a greedy request. Raises ValueError when it can never run."""
    message = Submit(
        request_id=name,
        prompt=ids.tobytes(),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        namespace=NAMESPACE,
    )
    answer = core.submit(message)
    if not isinstance(answer, Accepted):
        raise ValueError(answer.message)


def start(runner: FilledRunner, shape: Shape, num_steps: int, *, seed: int = 0) -> EngineCore:
    """A core whose conversations have all begun their answers, with room for `num_steps` more tokens each.

    Raises ValueError when they do not fit into the pool, or into the model's context.
    """
    core = EngineCore(runner, Limits(max_batch_tokens=WHOLE, max_sequences=shape.num_users))
    vocab_size, runner.is_computing = runner.info.vocab_size, False
    shared = random_ids(shape.num_shared, vocab_size, seed)
    num_own = shape.context - shape.num_shared
    prompts = [shared + random_ids(num_own, vocab_size, seed + 1 + user) for user in range(shape.num_users)]
    for number, prompt in enumerate(prompts):
        ask(core, f"cached {number}", prompt, 1)
        while core.has_work:
            core.step()
    for number, prompt in enumerate(prompts):
        # Who starts in an earlier step than others goes on drawing until they do.
        ask(core, str(number), prompt, num_steps + shape.num_users)
    while core.scheduler.num_waiting or any(not each.num_drawn for each in core.scheduler.running):
        core.step()
        if not core.scheduler.running or core.scheduler.counters.num_preemptions:
            raise ValueError(f"{shape} do not fit into {runner.info.num_blocks} blocks: raise --kv-bytes")
    runner.is_computing = True
    return core


def time_steps(
    core: EngineCore, num_steps: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of so many steps, after a few that are not counted."""
    times = []
    for _ in range(NUM_WARM + num_steps):
        started = clock()
        core.step()
        times.append(clock() - started)
    return times[NUM_WARM:]
