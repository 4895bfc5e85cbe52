"""Where a step's time goes, by kind, beside what the machine could do: floors, and the share that is reached.

stemma bench profile --model MODEL [--steps 20] [--json profile.json]

Shapes: conversations that decode together, and chunks of prompts. Kinds add up to the step. Inside the layers
the first thread counts its cycles; around them the clock is read where the model is called. A floor is the
longer of reading what has to be read and of computing what has to be computed, at the peaks that are
measured in the same sitting: the weights as served, and each block of keys and values once.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from tqdm import tqdm

from benchmarks.bare import (
    NUM_WARM,
    WHOLE,
    FilledRunner,
    Served,
    Shape,
    add_model,
    ask,
    fill_pool,
    load,
    random_ids,
    start,
)
from benchmarks.costs import Costs, Work
from benchmarks.flags import positive
from benchmarks.peaks import Peaks, measure_peaks
from benchmarks.program import run
from engine.batch import Batch
from engine.core import EngineCore
from engine.kv_pool import KVPool
from engine.models.decoder import Decoder
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.step import Step, StepResult
from kernels.cpu.fused_stack import FusedStack
from kernels.stack import Stack, StepTensors

__all__ = ["KINDS", "MarkedRunner", "Profile", "main", "profile_decoding", "profile_prefill"]

IN_LAYERS = ("products", "attention", "rows", "waiting")
KINDS = (*IN_LAYERS, "layers", "head", "sampling", "packing", "scheduler and cache", "rest")
DECODING = (Shape(1, 100), Shape(8, 900), Shape(32, 900, 600), Shape(64, 300))
PREFILLS = ((256, 0), (256, 1024))  # tokens, and those before them
NUM_PREFILLS = 6

Times = dict[str, float]  # seconds by kind


class Marks:
    """When each part of the last step began and ended, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.spans: dict[str, tuple[float, float]] = {}
        self.cycles: Mapping[str, int] = {}  # of the layers, by kind
        self.step = Step(())

    @contextmanager
    def note(self, name: str) -> Iterator[None]:
        """Note a part's begin and end."""
        started = self._clock()
        yield
        self.spans[name] = started, self._clock()

    def times(self) -> Times:
        """The step's seconds by kind; their sum is the step's. To be asked once the step is over."""
        step, run, forward, layers = (self._seconds(name) for name in ("step", "run", "forward", "layers"))
        began, ended = self.spans["run"]
        first, last = self.spans["forward"]
        head = self.spans.get("head", (last, last))
        times = {
            "head": head[1] - head[0],
            "sampling": ended - head[1],
            "packing": first - began,
            "scheduler and cache": step - run,
            "rest": forward - layers + head[0] - last,
        }
        return self._in_layers(layers) | times

    def _in_layers(self, seconds: float) -> Times:
        num_cycles = sum(self.cycles.values())
        if not num_cycles:
            return {"layers": seconds}
        return {kind: seconds * cycles / num_cycles for kind, cycles in self.cycles.items()}

    def _seconds(self, name: str) -> float:
        started, ended = self.spans[name]
        return ended - started


class MarkedRunner:
    """Runs steps as the model's own runner does, and marks when the parts of each begin and end."""

    def __init__(self, runner: ModelRunner, marks: Marks) -> None:
        self.info = runner.info
        self._marks = marks
        self._runner = ModelRunner(
            runner.info, _MarkedDecoder(runner.decoder, marks), runner.pool, sampler=runner.sampler
        )

    def run(self, step: Step) -> StepResult:
        """As `Runner`."""
        if not step.spans:
            return self._runner.run(step)
        self._marks.spans.clear()
        self._marks.step = step
        with self._marks.note("run"):
            return self._runner.run(step)


class _MarkedDecoder(Decoder):
    """The same decoder, weights and all."""

    def __init__(self, decoder: Decoder, marks: Marks) -> None:
        vars(self).update(vars(decoder))
        self._marks = marks
        self.stack = _marked(decoder.stack, marks)

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """As `Decoder`."""
        with self._marks.note("forward"):
            return super().forward(batch, pool)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Decoder`."""
        with self._marks.note("head"):
            return super().logits(hidden)


def _marked(stack: Stack, marks: Marks) -> Stack:
    """The layers, whose cycles by kind are noted too if they count them."""

    def run(
        residual: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        step: StepTensors,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        before = _cycles(stack)
        with marks.note("layers"):
            hidden = stack(residual, angles, step, keys, values)
        after = _cycles(stack)
        # The counts begin anew when a step needs more memory than those before it.
        has_begun_anew = any(after[kind] < count for kind, count in before.items())
        marks.cycles = {
            kind: count - (0 if has_begun_anew else before[kind]) for kind, count in after.items()
        }
        return hidden

    return run


def _cycles(stack: Stack) -> dict[str, int]:
    return stack.cycles if isinstance(stack, FusedStack) else {}


@dataclass(frozen=True, slots=True)
class Profile:
    """Steps of one shape."""

    name: str
    steps: Sequence[Times]
    work: Mapping[str, Work]  # of the last step, by kind

    def medians(self) -> Times:
        """Of each kind, in the order of KINDS."""
        return {
            kind: statistics.median(step[kind] for step in self.steps)
            for kind in KINDS
            if kind in self.steps[0]
        }

    @property
    def seconds(self) -> float:
        """Median of whole steps."""
        return statistics.median(sum(step.values()) for step in self.steps)

    def floor(self, kind: str, peaks: Peaks) -> float:
        """The least seconds of a kind; of the whole step where the kind is "step"."""
        if kind == "step":
            return sum(work.floor(peaks).seconds for work in self.work.values())
        if kind == "layers":
            return sum(self.work[each].floor(peaks).seconds for each in ("products", "attention"))
        return self.work[kind].floor(peaks).seconds if kind in self.work else 0.0


def profile_decoding(runner: FilledRunner, marks: Marks, costs: Costs, shape: Shape, count: int) -> Profile:
    """Steps in which all draw. `runner` computes with a MarkedRunner of these marks."""
    core = start(runner, shape, NUM_WARM + count + 1)
    steps = [_step(core, marks) for _ in range(NUM_WARM + count)]
    return Profile(f"decode {shape}", steps[NUM_WARM:], costs.of(marks.step))


def profile_prefill(
    runner: FilledRunner, marks: Marks, costs: Costs, num_tokens: int, num_before: int
) -> Profile:
    """Steps that compute one chunk of a prompt each."""
    core = EngineCore(runner, Limits(max_batch_tokens=WHOLE, max_sequences=1))
    vocab_size = runner.info.vocab_size
    before = random_ids(num_before, vocab_size, 0)
    if num_before:
        runner.is_computing = False
        ask(core, "before", before, 1)
        core.step()
    runner.is_computing = True
    steps, work = [], dict[str, Work]()
    for number in range(NUM_PREFILLS):
        ask(core, str(number), before + random_ids(num_tokens, vocab_size, 1 + number), 2)
        steps.append(_step(core, marks))
        assert marks.step.num_tokens == num_tokens, "what comes before is cached, and nothing else"
        work = costs.of(marks.step)
        core.step()
    return Profile(f"prefill {num_tokens} after {num_before:,}", steps[1:], work)


def _step(core: EngineCore, marks: Marks) -> Times:
    """One step's seconds by kind. The step's own mark outlives those of its run, which come first."""
    with marks.note("step"):
        core.step()
    return marks.times()


def run_all(served: Served, count: int) -> list[Profile]:
    """All shapes, one after the other."""
    runner, marks = served.runner, Marks()
    fill_pool(runner.pool)
    costs = served.costs
    filled = FilledRunner(MarkedRunner(runner, marks))
    profiles = []
    with tqdm(total=len(DECODING) + len(PREFILLS), unit="shape") as bar:
        for shape in DECODING:
            profiles.append(profile_decoding(filled, marks, costs, shape, count))
            bar.update()
        for num_tokens, num_before in PREFILLS:
            profiles.append(profile_prefill(filled, marks, costs, num_tokens, num_before))
            bar.update()
    return profiles


def table(profile: Profile, peaks: Peaks) -> str:
    """One shape's lines."""
    rows = [("step", profile.seconds), *profile.medians().items()]
    lines = [f"{profile.name:24}{'ms':>10}{'share':>9}{'floor, ms':>12}{'reached':>10}"]
    for kind, seconds in rows:
        floor = profile.floor(kind, peaks)
        reached = f"{floor * 1000:12.3f}{floor / seconds:10.0%}" if floor and seconds else ""
        lines.append(f"  {kind:22}{seconds * 1000:10.3f}{seconds / profile.seconds:9.1%}{reached}")
    return "\n".join(lines)


def as_json(profile: Profile, peaks: Peaks) -> dict[str, object]:
    """One shape's figures, in milliseconds."""
    medians = {"step": profile.seconds, **profile.medians()}
    return {
        "shape": profile.name,
        "num_steps": len(profile.steps),
        "ms": {kind: seconds * 1000 for kind, seconds in medians.items()},
        "floor_ms": {
            kind: profile.floor(kind, peaks) * 1000 for kind in medians if profile.floor(kind, peaks)
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="stemma bench profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("--steps", type=positive, default=20, help="of each shape that decodes")
    options = parser.parse_args(arguments)
    peaks = measure_peaks()
    served = load(options)
    profiles = run_all(served, options.steps)
    print(f"{options.model.name}, products {served.products}; medians of {options.steps} steps\n{peaks}")
    for profile in profiles:
        print(f"\n{table(profile, peaks)}")
    if options.json is not None:
        figures = {
            "model": options.model.name,
            "products": served.products,
            "peaks": {"bfloat16": peaks.bfloat16, "int8": peaks.int8, "read": peaks.read},
            "shapes": [as_json(profile, peaks) for profile in profiles],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    run(main)
