"""How cost grows: time between tokens with users and with context, first tokens with history, memory with
conversations. The engine alone, without a server.

stemma bench growth --model MODEL [--plots FOLDER] [--quick] [--json growth.json]

Each plot comes with a line that says what bounds its last point: what would take longest at the peaks of this
machine, measured in the same sitting. `--quick` stops early in every direction.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    time_steps,
)
from benchmarks.chart import line_chart
from benchmarks.costs import Costs, Work, bound_of
from benchmarks.flags import output_folder
from benchmarks.peaks import Peaks, measure_peaks
from benchmarks.program import run
from engine.core import EngineCore, Runner
from engine.runner import ModelRunner
from engine.scheduler import Limits

__all__ = ["Extent", "Figure", "first_tokens", "main", "memory", "with_context", "with_users"]

LIMITS = Limits(max_batch_tokens=512, max_sequences=64)
USER_CONTEXT = 300  # tokens of each user
NUM_NEW = 60  # tokens that a turn adds to its history
NUM_SYSTEM, NUM_OWN = 512, 120  # tokens of a conversation: in common, and its own
STATM = Path("/proc/self/statm")  # Linux has it
MIB = 1 << 20

Lines = dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Extent:
    """How far to go."""

    users: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    contexts: Sequence[int] = (128, 256, 512, 1024, 2048, 4096, 8000)
    histories: Sequence[int] = (128, 256, 512, 1024, 2048, 4096, 8000)
    conversations: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)
    num_steps: int = 15
    num_rounds: int = 3  # of first tokens with the cache


QUICK = Extent((1, 2, 4), (64, 128), (64, 128), (1, 2, 4), 3, 1)


@dataclass(frozen=True, slots=True)
class Figure:
    """One plot: its lines over sizes, and the line that says what bounds it."""

    name: str
    x_label: str
    unit: str
    sizes: Sequence[int]
    lines: Lines
    bound: str

    def draw(self, folder: Path) -> None:
        """As SVG."""
        chart = line_chart(
            self.sizes, self.lines, x_label=self.x_label, write=lambda value: f"{value:,.4g} {self.unit}"
        )
        (folder / f"growth-{self.name}.svg").write_text(chart)

    def table(self) -> str:
        """As text, with the line below it."""
        width = max(map(len, self.lines)) + 2
        head = "".join(f"{size:>10,}" for size in self.sizes)
        rows = [
            f"{name:{width}}"
            + "".join(f"{'-' if value is None else f'{value:,.4g}':>10}" for value in values)
            for name, values in self.lines.items()
        ]
        title = f"{self.name}, {self.unit}, by {self.x_label}"
        return "\n".join([title, f"{'':{width}}{head}", *rows, f"  {self.bound}"])


@dataclass(frozen=True, slots=True)
class Bench:
    """What all measurements need."""

    runner: FilledRunner
    costs: Costs
    peaks: Peaks

    def gap(self, shape: Shape, num_steps: int) -> float:
        """Median milliseconds between tokens."""
        return statistics.median(time_steps(start(self.runner, shape, NUM_WARM + num_steps), num_steps)) * 1e3

    def floor(self, shape: Shape) -> float:
        """The least milliseconds of a step in which all draw, at the machine's peaks."""
        return sum(each.floor(self.peaks).seconds for each in self._work(shape).values()) * 1e3

    def bound(self, shape: Shape) -> str:
        """What takes longest of such a step."""
        return f"{shape}: {bound_of(self._work(shape), self.peaks)}"

    def _work(self, shape: Shape) -> dict[str, Work]:
        blocks = shape.num_users * -(-shape.context // self.costs.block_size)
        spans = [(shape.context - 1, shape.context)] * shape.num_users
        return self.costs.count(spans, num_blocks=blocks, num_draws=shape.num_users)


def with_users(bench: Bench, extent: Extent) -> Figure:
    """Time between tokens against users."""
    shapes = [Shape(count, USER_CONTEXT) for count in extent.users]
    gaps: list[float | None] = [bench.gap(shape, extent.num_steps) for shape in tqdm(shapes, desc="users")]
    lines: Lines = {"measured": gaps, "floor": [bench.floor(shape) for shape in shapes]}
    return Figure("users", "users at once", "ms", extent.users, lines, bench.bound(shapes[-1]))


def with_context(bench: Bench, extent: Extent) -> Figure:
    """Time between tokens against context, of one user and of four."""
    lines: Lines = {}
    for count in (1, 4):
        shapes = [Shape(count, context) for context in extent.contexts]
        lines[f"{count} at once"] = [
            bench.gap(shape, extent.num_steps) for shape in tqdm(shapes, desc=f"context, {count} at once")
        ]
        lines[f"{count} at once, floor"] = [bench.floor(shape) for shape in shapes]
    bound = bench.bound(Shape(1, extent.contexts[-1]))
    return Figure("context", "tokens of context", "ms", extent.contexts, lines, bound)


def first_tokens(bench: Bench, extent: Extent) -> Figure:
    """Time to the first token of a turn against its history, with the cache and without."""
    cached: list[float | None] = []
    computed: list[float | None] = []
    for history in tqdm(extent.histories, desc="history"):
        times = [_first_token(bench.runner, history, number) for number in range(extent.num_rounds)]
        cached.append(statistics.median(times))
        computed.append(_first_token(bench.runner, 0, history, num_new=history + NUM_NEW))
    last, block_size = extent.histories[-1], bench.costs.block_size
    blocks, end = -(-(last + NUM_NEW) // block_size), last + NUM_NEW
    works = [bench.costs.count([(begin, end)], num_blocks=blocks, num_draws=1) for begin in (last, 0)]
    bound = "; ".join(
        f"{name}: {bound_of(work, bench.peaks)}"
        for name, work in zip(("cached", "computed"), works, strict=True)
    )
    lines: Lines = {"cached": cached, "computed": computed}
    return Figure("history", "tokens of history", "ms", extent.histories, lines, bound)


def _first_token(runner: FilledRunner, num_history: int, seed: int, *, num_new: int = NUM_NEW) -> float:
    """Milliseconds to the first token of a turn whose history is in the cache."""
    core, vocab_size = EngineCore(runner, LIMITS), runner.info.vocab_size
    history = random_ids(num_history, vocab_size, seed)
    if history:
        runner.is_computing = False
        ask(core, "history", history, 1)
        while core.has_work:
            core.step()
        runner.is_computing = True
    ask(core, "turn", history + random_ids(num_new, vocab_size, seed + 1), 1)
    started = time.perf_counter()
    while core.has_work:
        core.step()
    return (time.perf_counter() - started) * 1e3


def memory(runner: Runner, extent: Extent, block_bytes: int) -> Figure:
    """Resident memory, and blocks of keys and values, against conversations that were begun and may go on.

    To be measured before the pool was filled. All have one system prompt; their blocks stay cached.
    """
    core, vocab_size = (
        EngineCore(runner, Limits(max_batch_tokens=WHOLE, max_sequences=8)),
        runner.info.vocab_size,
    )
    system, resident_before, num_open = random_ids(NUM_SYSTEM, vocab_size, 0), _resident_bytes(), 0
    lines: Lines = {"resident, grown": [], "blocks": [], "blocks, unshared": []}
    for count in tqdm(extent.conversations, desc="conversations"):
        for number in range(num_open, count):
            ask(core, str(number), system + random_ids(NUM_OWN, vocab_size, 1 + number), 1)
            while core.has_work:
                core.step()
        num_open = count
        tier = core.stats().tiers["device"]
        each = -(-(NUM_SYSTEM + NUM_OWN) // runner.info.block_size)
        lines["resident, grown"].append((_resident_bytes() - resident_before) / MIB)
        lines["blocks"].append((tier.num_cached + tier.num_held) * block_bytes / MIB)
        lines["blocks, unshared"].append(count * each * block_bytes / MIB)
    bound = (
        f"bound by the blocks of {NUM_OWN} tokens of each conversation's own: "
        f"{-(-NUM_OWN // runner.info.block_size) * block_bytes / MIB:.2f} MiB; "
        f"the {NUM_SYSTEM} in common are held once"
    )
    return Figure("memory", "open conversations", "MiB", extent.conversations, lines, bound)


def _resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def measure(served: Served, extent: Extent, peaks: Peaks) -> list[Figure]:
    """All figures."""
    runner: ModelRunner = served.runner
    grown = memory(runner, extent, runner.pool.bytes_per_block)
    fill_pool(runner.pool)
    bench = Bench(FilledRunner(runner), served.costs, peaks)
    return [with_users(bench, extent), with_context(bench, extent), first_tokens(bench, extent), grown]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and draw them if asked."""
    parser = argparse.ArgumentParser(
        prog="stemma bench growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model(parser)
    parser.add_argument("--plots", type=output_folder, help="the folder where to draw, as SVG")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    peaks = measure_peaks()
    figures = measure(load(options), QUICK if options.quick else Extent(), peaks)
    print(f"{options.model.name}; {peaks}")
    for figure in figures:
        print(f"\n{figure.table()}")
        if options.plots is not None:
            figure.draw(options.plots)
    if options.json is not None:
        told = {
            each.name: {"unit": each.unit, "sizes": each.sizes, "lines": each.lines, "bound": each.bound}
            for each in figures
        }
        options.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    run(main)
