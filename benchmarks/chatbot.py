"""Latency against the rate of requests, by how memory is given out; and a chatbot, with and without reuse.

stemma bench chatbot --data AzureLLMInferenceTrace_conv.csv --model MODEL [--plots FOLDER] [--json FILE]

Time is simulated: a step takes what steps of its size were measured to take with the real engine, on this
machine or before (--times instead of --model). Scheduler and cache are the engine's own; beside them stand
three ways of reserving memory in a pool of the same size, see reservation.py. Normalized latency is a
request's seconds from arrival to end over the tokens of its answer, the mean over requests.

Requests: Azure's lengths, nothing in common, after figure 12 of Kwon et al., "Efficient memory management for
large language model serving with PagedAttention" (SOSP 2023). Chatbot, after its figure 17: a prompt is the
last 1,024 tokens of the conversation, an answer has at most 1,024. Questions have lengths by chance with the
mean that the paper gives for ShareGPT, answers those of Azure. Where the window slides the beginning changes,
so that only what resends the whole history can find all of it again.
"""

import argparse
import json
import random
import statistics
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from benchmarks.azure import Lengths, read_azure
from benchmarks.bare import (
    NUM_WARM,
    FilledRunner,
    Served,
    Shape,
    add_model,
    fill_pool,
    load,
    start,
    time_steps,
)
from benchmarks.chart import line_chart
from benchmarks.conversing import Chats, normalized_latency, poisson, serve
from benchmarks.flags import output_folder, positive, rate
from benchmarks.modelless import prompt_of
from benchmarks.program import run
from benchmarks.reservation import POLICIES
from benchmarks.virtual import PagedServer, Request, ReservedServer, Server, StepTimes

__all__ = ["chat", "main", "measure_times", "read_times", "servers", "single"]

SIZES = (1, 8, 32, 128, 512, 2048)  # tokens of measured steps
USERS, NEAR, FAR, NUM_STEPS = 16, 100, 900, 12  # two contexts whose difference is what a token seen costs
WINDOW, LONGEST_ANSWER = 1024, 1024  # tokens
LONGEST = WINDOW + LONGEST_ANSWER
MEAN_QUESTION = 161  # tokens: ShareGPT's mean input in the paper
NUM_TURNS, THINK_SECONDS = 4, 10.0
RATES = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0)
SUSTAINED = 3.0  # a rate counts as sustained up to so many times the engine's latency at the lowest

Make = Callable[[], Server]
Curves = dict[str, list[float]]


def measure_times(served: Served) -> StepTimes:
    """What steps take with the real engine."""
    runner = served.runner
    by_tokens = runner.measure_steps(SIZES)
    fill_pool(runner.pool)
    near, far = (
        statistics.median(
            time_steps(start(FilledRunner(runner), Shape(USERS, context), NUM_WARM + NUM_STEPS), NUM_STEPS)
        )
        for context in (NEAR, FAR)
    )
    return StepTimes(by_tokens, max(far - near, 0.0) / (USERS * (FAR - NEAR)))


def read_times(path: Path) -> StepTimes:
    """What `--json` has written before. Raises OSError, and ValueError for a file of another form."""
    told = json.loads(path.read_text())["times"]
    by_tokens = {int(size): float(seconds) for size, seconds in told["by_tokens"].items()}
    return StepTimes(by_tokens, float(told["per_seen"]))


def servers(times: StepTimes, num_slots: int) -> dict[str, Make]:
    """The engine's pool, and each way of reserving one of the same size."""
    reserved: dict[str, Make] = {
        name: partial(ReservedServer, times, num_slots, policy, LONGEST) for name, policy in POLICIES.items()
    }
    return {"paged": partial(PagedServer, times, num_slots), **reserved}


def single(make: Make, lengths: Sequence[Lengths], rate: float, seed: int) -> float:
    """Normalized latency of requests that have nothing in common."""
    requests = [
        Request(str(number), array("i", prompt_of(number, each.num_prompt)), each.num_answer)
        for number, each in enumerate(lengths)
    ]
    return normalized_latency(serve(make(), poisson(requests, rate, seed), lambda _ended, _now: None))


def chat(
    make: Make, turns: Sequence[Lengths], rate: float, seed: int, *, window: int | None, shares: bool
) -> float:
    """Normalized latency of conversations, whose turns together come at that rate."""
    chats = Chats(turns, NUM_TURNS, window=window, shares=shares, think_seconds=THINK_SECONDS, seed=seed)
    arrivals = poisson(chats.first_turns(), rate / NUM_TURNS, seed)
    return normalized_latency(serve(make(), arrivals, chats.follow))


def chat_turns(lengths: Sequence[Lengths], seed: int) -> list[Lengths]:
    """Questions by chance, at most what leaves room in the window, and the answers of the trace."""
    rng = random.Random(seed)
    return [
        Lengths(
            min(1 + int(rng.expovariate(1 / MEAN_QUESTION)), WINDOW), min(each.num_answer, LONGEST_ANSWER)
        )
        for each in lengths
    ]


def sweep(curves: Mapping[str, Callable[[float], float]], rates: Sequence[float], title: str) -> Curves:
    """Every curve at every rate."""
    with tqdm(total=len(curves) * len(rates), desc=title, unit="run") as bar:
        found: Curves = {name: [] for name in curves}
        for rate in rates:
            for name, run in curves.items():
                found[name].append(run(rate))
                bar.update()
    return found


def sustained(curves: Curves, rates: Sequence[float]) -> dict[str, float]:
    """The highest rate up to which latency stays under the same bound; 0 if there is none."""
    bound = SUSTAINED * next(iter(curves.values()))[0]
    found = {}
    for name, latencies in curves.items():
        late = [place for place, each in enumerate(latencies) if each > bound]
        count = late[0] if late else len(rates)
        found[name] = rates[count - 1] if count else 0.0
    return found


def table(curves: Curves, rates: Sequence[float]) -> str:
    """Milliseconds a token, by rate, and what is sustained."""
    width = max(map(len, curves)) + 2
    lines = [f"{'requests/s':{width}}" + "".join(f"{rate:8g}" for rate in rates) + f"{'sustained':>11}"]
    kept = sustained(curves, rates)
    for name, latencies in curves.items():
        cells = "".join(f"{each * 1000:8.0f}" for each in latencies)
        lines.append(f"{name:{width}}{cells}{kept[name]:11g}")
    return "\n".join(lines)


def _measure(options: argparse.Namespace, times: StepTimes) -> dict[str, Curves]:
    lengths = read_azure(options.data, options.requests, LONGEST)
    turns, makes, seed = chat_turns(lengths, options.seed), servers(times, options.slots), options.seed
    requests = {name: partial(_single_at, make, lengths, seed) for name, make in makes.items()}
    chats = {
        f"{name}, no reuse": partial(_chat_at, make, turns, seed, WINDOW, False)
        for name, make in makes.items()
    }
    paged = makes["paged"]
    chats |= {
        "paged, reuse": partial(_chat_at, paged, turns, seed, WINDOW, True),
        "paged, whole history, reuse": partial(_chat_at, paged, turns, seed, None, True),
    }
    return {
        "requests": sweep(requests, options.rates, "requests"),
        "chatbot": sweep(chats, options.rates, "chatbot"),
    }


def _single_at(make: Make, lengths: Sequence[Lengths], seed: int, rate: float) -> float:
    return single(make, lengths, rate, seed)


def _chat_at(
    make: Make, turns: Sequence[Lengths], seed: int, window: int | None, shares: bool, rate: float
) -> float:
    return chat(make, turns, rate, seed, window=window, shares=shares)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stemma bench chatbot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="Azure's conversation trace")
    add_model(parser, required=False)
    parser.add_argument("--times", type=Path, help="what --json has written: nothing is measured then")
    parser.add_argument("--requests", type=positive, default=400)
    parser.add_argument("--slots", type=positive, default=24_576, help="tokens that the pool holds")
    parser.add_argument("--rates", type=rate, nargs="+", default=list(RATES), help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plots", type=output_folder, help="the folder where to draw, as SVG")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and draw them if asked."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.times is None) == (options.model is None):
        parser.error("either --model or --times")
    times = read_times(options.times) if options.times is not None else measure_times(load(options))
    found = _measure(options, times)
    print(
        f"simulated time, from measured steps: {times}\n{options.requests} requests, a pool of "
        f"{options.slots:,} tokens; normalized latency, ms a token"
    )
    for name, curves in found.items():
        print(f"\n{name}\n{table(curves, options.rates)}")
        if options.plots is not None:
            chart = line_chart(
                [f"{rate:g}" for rate in options.rates],
                curves,
                x_label="requests a second (simulated time)",
                write="{:.2f} s".format,
            )
            (options.plots / f"chatbot-{name}.svg").write_text(chart)
    if options.json is not None:
        told = {"by_tokens": times.by_tokens, "per_seen": times.per_seen}
        figures = {"times": told, "rates": options.rates, "seconds_per_token": found}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    run(main)
