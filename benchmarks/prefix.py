"""What a shared beginning is worth: the same requests with it cached, and with nothing shared.

stemma bench prefix --model MODEL --text TEXT [--plot prefix.svg]

Prefixes of 80 and 341 tokens, as the paper's one example and five examples for translation have (its figure
16); each request adds its own tokens and is answered greedily. Cached: the prefix was computed before, as in
the paper. Not: each request sees a cache of its own. The two are run in turn, and the medians of tokens a
second compared.
"""

import argparse
import statistics
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.chart import line_chart
from benchmarks.flags import natural, output_file, positive
from benchmarks.program import run
from benchmarks.prompts import TextPrompts
from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import EngineConfig, Submit
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams

PAPER = {80: 1.67, 341: 3.58}  # throughput against Orca (Oracle), LLaMA-13B


def serve(core: EngineCore, prompts: Sequence["array[int]"], num_answer: int, *, shares: bool) -> float:
    """Tokens a second, of all answers together."""
    sampling = SamplingParams(max_tokens=num_answer, temperature=0.0)
    started = time.perf_counter()
    for number, prompt in enumerate(prompts):
        namespace = b"bench" if shares else b"bench %d" % number
        core.submit(
            Submit(request_id=str(number), prompt=prompt.tobytes(), sampling=sampling, namespace=namespace)
        )
    while core.has_work:
        core.step()
    return len(prompts) * num_answer / (time.perf_counter() - started)


def measure(
    runner: ModelRunner, prompts: Sequence["array[int]"], num_prefix: int, num_answer: int
) -> list[float]:
    """Tokens a second with the prefix cached, and with nothing shared."""
    rates = []
    for shares in (True, False):
        core = EngineCore(runner, Limits(max_batch_tokens=512, max_sequences=64))
        if shares:
            serve(core, [prompts[0][:num_prefix]], 1, shares=True)
        rates.append(serve(core, prompts, num_answer, shares=shares))
    return rates


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(
        prog="stemma bench prefix", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="a long text to cut prompts from")
    parser.add_argument("--requests", type=positive, default=32)
    parser.add_argument("--own", type=natural, default=32, help="tokens that each request adds to the prefix")
    parser.add_argument("--answer", type=positive, default=32, help="tokens of each answer")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--plot", type=output_file, help="where to draw it, as SVG")
    options = parser.parse_args()
    runner = load_runner(EngineConfig(model=str(options.model)))
    texts = TextPrompts(options.model, options.text)
    gains = {}
    print(f"{options.requests} requests at once, tokens a second")
    print(f"{'prefix':>7}{'cached':>10}{'not':>10}{'ratio':>8}{'paper':>8}")
    for num_prefix in PAPER:
        prefix = texts.take(num_prefix)
        prompts = [prefix + texts.take(options.own) for _ in range(options.requests)]
        rounds = [
            measure(runner, prompts, num_prefix, options.answer)
            for _ in tqdm(range(options.rounds), desc=f"{num_prefix} tokens")
        ]
        cached, cold = (statistics.median(each[place] for each in rounds) for place in (0, 1))
        gains[num_prefix] = cached / cold
        print(f"{num_prefix:7}{cached:10.1f}{cold:10.1f}{gains[num_prefix]:8.2f}{PAPER[num_prefix]:8.2f}")
    if options.plot is not None:
        lines = {"here": list(gains.values()), "paper": list(PAPER.values())}
        chart = line_chart(list(gains), lines, x_label="tokens of the shared prefix", write="{:.2f} x".format)
        options.plot.write_text(chart)


if __name__ == "__main__":
    run(main)
