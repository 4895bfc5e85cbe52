"""The bare engine, without a server: decoding, prompts, short prompts at once, many users of one new prompt.

stemma bench engine --model MODEL [--users 1 8 32] [--context 100 900] [--shared 600] [--json engine.json]

- Decoding: steps of users who all draw, at so many tokens of context each, with none of them and with
  `--shared` of them in common.
- Prompts: the first token of 512 tokens that nobody has seen.
- Short prompts: `--batch` questions at once, each answered with exactly `--tokens` tokens, prompts included.
- Arrivals: users who come at once with the same new system prompt of S tokens and u of their own each. What
  is computed is counted exactly; the time until all have their first token is held against one user's alone.
"""

import argparse
import json
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from benchmarks.bare import (
    NUM_WARM,
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
from benchmarks.costs import Costs
from benchmarks.flags import natural, positive
from benchmarks.peaks import Peaks, measure_peaks
from benchmarks.program import run
from engine.core import EngineCore, Runner
from engine.scheduler import Limits
from gateway.conversation.prompt import load_prompts

__all__ = ["Arrival", "Decoding", "Prompts", "arrive", "decode", "main", "prefill", "run_batch", "shapes"]

LIMITS = Limits(max_batch_tokens=512, max_sequences=64)  # as they are served
NUM_PROMPT = 512
NUM_SYSTEM, NUM_OWN = 600, 60  # tokens of a new system prompt, and of each user's own
QUESTION = "Question {}: tell me about the sea"


@dataclass(frozen=True, slots=True)
class Decoding:
    """Steps of one shape."""

    shape: Shape
    median_ms: float
    least_ms: float

    @property
    def tokens_per_second(self) -> float:
        """Of all users together, at the median."""
        return self.shape.num_users / self.median_ms * 1000


@dataclass(frozen=True, slots=True)
class Prompts:
    """First tokens of prompts of so many tokens."""

    num_tokens: int
    median_ms: float
    operations: float  # of one

    @property
    def tokens_per_second(self) -> float:
        """Of one prompt."""
        return self.num_tokens / self.median_ms * 1000

    @property
    def operations_per_second(self) -> float:
        """A multiplication and its addition are two."""
        return self.operations / self.median_ms * 1000


@dataclass(frozen=True, slots=True)
class Arrival:
    """Users who came at once with one new system prompt, and one alone."""

    num_users: int
    num_system: int
    num_own: int
    num_computed: int  # prompt tokens
    seconds: float  # until all had their first token
    seconds_alone: float

    @property
    def num_least(self) -> int:
        """Prompt tokens that differ."""
        return self.num_system + self.num_users * self.num_own

    @property
    def ratio(self) -> float:
        """Time of all over time of one."""
        return self.seconds / self.seconds_alone

    @property
    def least_ratio(self) -> float:
        """The same in tokens."""
        return self.num_least / (self.num_system + self.num_own)


def shapes(users: Sequence[int], contexts: Sequence[int], num_shared: int) -> list[Shape]:
    """Every number of users at every context, and with shared tokens where several users have more."""
    plain = [Shape(num_users, context) for num_users in users for context in contexts]
    shared = [
        Shape(shape.num_users, shape.context, num_shared)
        for shape in plain
        if shape.num_users > 1 and 0 < num_shared < shape.context
    ]
    return plain + shared


def decode(runner: FilledRunner, shape: Shape, num_steps: int) -> Decoding:
    """Steps in which all draw."""
    times = time_steps(start(runner, shape, NUM_WARM + num_steps), num_steps)
    return Decoding(shape, statistics.median(times) * 1000, min(times) * 1000)


def prefill(runner: Runner, costs: Costs, num_rounds: int, num_tokens: int = NUM_PROMPT) -> Prompts:
    """New prompts, one after the other; one before the first is not counted."""
    times = [
        _first_tokens(EngineCore(runner, LIMITS), [random_ids(num_tokens, runner.info.vocab_size, number)])
        for number in range(num_rounds + 1)
    ]
    work = costs.count([(0, num_tokens)], num_blocks=-(-num_tokens // runner.info.block_size), num_draws=1)
    operations = sum(each.operations for each in work.values())
    return Prompts(num_tokens, statistics.median(times[1:]) * 1000, operations)


def run_batch(runner: Runner, prompts: Sequence["array[int]"], num_answer: int) -> float:
    """Tokens a second of answers to prompts that come at once, by an engine that has seen nothing."""
    core = EngineCore(runner, Limits(max_batch_tokens=512, max_sequences=len(prompts)))
    started = time.perf_counter()
    for number, ids in enumerate(prompts):
        ask(core, str(number), ids, num_answer)
    while core.has_work:
        core.step()
    assert core.scheduler.counters.num_generated_tokens == len(prompts) * num_answer, "nothing ends early"
    return len(prompts) * num_answer / (time.perf_counter() - started)


def arrive(
    runner: Runner, num_users: int, num_rounds: int, *, num_system: int = NUM_SYSTEM, num_own: int = NUM_OWN
) -> Arrival:
    """All at once and one alone, in turns; medians. A round before the first is not counted."""
    together, alone, num_computed = [], [], 0
    for number in range(num_rounds + 1):
        vocab_size, seed = runner.info.vocab_size, number * (num_users + 1)
        system = random_ids(num_system, vocab_size, seed)
        prompts = [system + random_ids(num_own, vocab_size, seed + 1 + user) for user in range(num_users)]
        alone.append(_first_tokens(EngineCore(runner, LIMITS), prompts[:1]))
        core = EngineCore(runner, LIMITS)
        together.append(_first_tokens(core, prompts))
        num_computed = core.scheduler.counters.num_computed_prompt_tokens
    times = statistics.median(together[1:]), statistics.median(alone[1:])
    return Arrival(num_users, num_system, num_own, num_computed, *times)


def _first_tokens(core: EngineCore, prompts: Sequence["array[int]"]) -> float:
    """Seconds until every prompt has its first token, which is its last."""
    started = time.perf_counter()
    for number, ids in enumerate(prompts):
        ask(core, str(number), ids, 1)
    while core.has_work:
        core.step()
    return time.perf_counter() - started


def _questions(model: Path, count: int) -> list["array[int]"]:
    """Short prompts, as the model's tokenizer has them."""
    encode = load_prompts(model).tokenizer.encode
    return [array("i", encode(QUESTION.format(number))) for number in range(count)]


def _print(decodings: Sequence[Decoding], prompts: Prompts, peaks: Peaks) -> None:
    print(f"{peaks}\n\n{'decode':24}{'ms':>9}{'least':>9}{'tokens/s':>11}")
    for each in decodings:
        print(f"{each.shape!s:24}{each.median_ms:9.2f}{each.least_ms:9.2f}{each.tokens_per_second:11.1f}")
    print(
        f"\nprompt of {prompts.num_tokens}: {prompts.median_ms:.1f} ms, {prompts.tokens_per_second:,.0f} "
        f"tokens/s, {prompts.operations_per_second / 1e9:,.0f} GFLOP/s, "
        f"{prompts.operations_per_second / peaks.bfloat16:.0%} of the peak in bfloat16"
    )


def _print_arrivals(arrivals: Sequence[Arrival]) -> None:
    print(
        f"\n{'at once':>8}{'computed':>10}{'S + N u':>9}{'ms':>9}{'one, ms':>9}{'ratio':>8}{'of tokens':>11}"
    )
    for each in arrivals:
        print(
            f"{each.num_users:8}{each.num_computed:10}{each.num_least:9}{each.seconds * 1000:9.1f}"
            f"{each.seconds_alone * 1000:9.1f}{each.ratio:8.2f}{each.least_ratio:11.2f}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stemma bench engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model(parser)
    parser.add_argument("--users", type=positive, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=positive, nargs="+", default=[100, 900], help="tokens of each user")
    parser.add_argument(
        "--shared", type=natural, default=600, help="tokens in common, where they fit; 0: none"
    )
    parser.add_argument(
        "--batch", type=positive, nargs="*", default=[1, 8, 16, 32], help="short prompts at once"
    )
    parser.add_argument("--tokens", type=positive, default=128, help="of each short prompt's answer")
    parser.add_argument("--steps", type=positive, default=20, help="of each shape")
    parser.add_argument("--rounds", type=positive, default=3, help="of prompts and arrivals")
    return parser


def _measure(served: Served, options: argparse.Namespace, peaks: Peaks) -> dict[str, object]:
    """Everything, printed as it comes; returns the figures."""
    runner = served.runner
    fill_pool(runner.pool)
    filled = FilledRunner(runner)
    wanted = shapes(options.users, options.context, options.shared)
    decodings = [decode(filled, shape, options.steps) for shape in tqdm(wanted, unit="shape")]
    prompts = prefill(runner, served.costs, options.rounds)
    _print(decodings, prompts, peaks)
    batches = {}
    for count in options.batch:
        batches[count] = run_batch(runner, _questions(options.model, count), options.tokens)
        print(f"{count:3} short prompts x {options.tokens}: {batches[count]:7.1f} tokens/s")
    arrivals = [arrive(runner, count, options.rounds) for count in options.users if count > 1]
    _print_arrivals(arrivals)
    return {
        "decode": [asdict(each) | {"tokens_per_second": each.tokens_per_second} for each in decodings],
        "prefill": asdict(prompts) | {"share_of_peak": prompts.operations_per_second / peaks.bfloat16},
        "batch_tokens_per_second": batches,
        "arrivals": [
            asdict(each) | {"ratio": each.ratio, "least_ratio": each.least_ratio} for each in arrivals
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    options = _parser().parse_args(arguments)
    peaks = measure_peaks()
    served = load(options)
    print(f"{options.model.name}, products {served.products}; medians")
    figures = _measure(served, options, peaks)
    if options.json is not None:
        head = {"model": options.model.name, "products": served.products, "peaks": asdict(peaks)}
        options.json.write_text(json.dumps({**head, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    run(main)
