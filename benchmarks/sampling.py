"""Blocks saved when the answers to one prompt share it: parallel sampling.

stemma bench sampling --data AzureLLMInferenceTrace_conv.csv [--plot sampling.svg]

Saved: the blocks that the tables of running sequences would need more without sharing, over what they would
need in all; the mean over steps. No two requests share anything. The paper's figures are those of its figure
15, for other lengths: Alpaca's prompts are much shorter than ShareGPT's, and Azure's are longer than both.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.azure import Lengths, read_azure
from benchmarks.chart import line_chart
from benchmarks.flags import output_file, positive
from benchmarks.modelless import ask, make_core, prompt_of
from benchmarks.program import run

PAPER = {2: (0.061, 0.162), 6: (0.098, 0.305)}  # Alpaca, ShareGPT: the ends of its ranges
COUNTS = (2, 4, 6)
LONGEST = 4096


def measure(requests: Sequence[Lengths], num_choices: int, block_size: int) -> float:
    """The share that is saved."""
    core = make_core(1 << 16, block_size, max_sequences=64, context_length=LONGEST)
    prompts = ((prompt_of(number, each.num_prompt), each.num_answer) for number, each in enumerate(requests))
    ask(core, prompts, num_choices=num_choices)
    with tqdm(total=len(requests) * num_choices, unit="answer", desc=f"n={num_choices}") as bar:
        while core.has_work:
            core.step()
            bar.update(core.scheduler.counters.num_finished - bar.n)
    return core.stats().saved_share_mean


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(
        prog="stemma bench sampling", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="Azure's conversation trace")
    parser.add_argument("--requests", type=positive, default=100)
    parser.add_argument("--block-size", type=positive, default=16)
    parser.add_argument("--plot", type=output_file, help="where to draw it, as SVG")
    options = parser.parse_args()
    requests = read_azure(options.data, options.requests, LONGEST)
    saved = {count: measure(requests, count, options.block_size) for count in COUNTS}
    print(f"{len(requests)} requests, blocks of {options.block_size}: blocks saved by sharing")
    print(f"{'n':>3}{'here':>9}{'paper, Alpaca':>15}{'ShareGPT':>10}")
    for count, share in saved.items():
        alpaca, sharegpt = (f"{each:.1%}" for each in PAPER[count]) if count in PAPER else ("-", "-")
        print(f"{count:3}{share:9.1%}{alpaca:>15}{sharegpt:>10}")
    if options.plot is not None:
        lines: dict[str, list[float | None]] = {
            "here, Azure": [*saved.values()],
            "paper, ShareGPT": [PAPER[count][1] if count in PAPER else None for count in saved],
            "paper, Alpaca": [PAPER[count][0] if count in PAPER else None for count in saved],
        }
        options.plot.write_text(line_chart(list(saved), lines, x_label="answers to a prompt"))


if __name__ == "__main__":
    run(main)
