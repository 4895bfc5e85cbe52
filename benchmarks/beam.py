"""Blocks saved when the hypotheses of a beam search share what they have in common.

stemma bench beam --model MODEL --data AzureLLMInferenceTrace_conv.csv --text TEXT [--plot beam.svg]

The real model searches, over pieces of a real text, with lengths from the trace. Saved: the blocks that the
tables of running hypotheses would need more without sharing, over what they would need in all; the mean over
steps. No two requests share anything. The paper's figures are those of its figure 15.
"""

import argparse
from array import array
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.azure import read_azure
from benchmarks.chart import line_chart
from benchmarks.flags import output_file, positive
from benchmarks.program import run
from benchmarks.prompts import TextPrompts
from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import Accepted, BeamParams, EngineConfig, Submit
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams

PAPER = {2: (0.376, 0.443), 6: (0.552, 0.663)}  # Alpaca, ShareGPT: the ends of its ranges
WIDTHS = (2, 4, 6)


def measure(
    runner: ModelRunner, requests: Sequence[tuple["array[int]", int]], width: int
) -> tuple[float, int]:
    """The share that is saved, and how often a hypothesis went on from another's blocks."""
    core = EngineCore(runner, Limits(max_batch_tokens=512, max_sequences=64))
    for number, (prompt, num_answer) in enumerate(requests):
        answer = core.submit(
            Submit(
                request_id=str(number),
                prompt=prompt.tobytes(),
                sampling=SamplingParams(max_tokens=num_answer, beam=BeamParams(width=width)),
                namespace=b"bench",
            )
        )
        if not isinstance(answer, Accepted):
            raise ValueError(answer.message)
    with tqdm(total=len(requests), unit="request", desc=f"width {width}") as bar:
        while core.has_work:
            core.step()
            bar.update(core.scheduler.counters.num_finished - bar.n)
    stats = core.stats()
    return stats.saved_share_mean, stats.num_beam_forks


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(
        prog="stemma bench beam", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="Azure's conversation trace")
    parser.add_argument("--text", type=Path, required=True, help="a long text to cut prompts from")
    parser.add_argument("--requests", type=positive, default=8)
    parser.add_argument("--longest", type=positive, default=1024, help="longer requests are left out")
    parser.add_argument("--plot", type=output_file, help="where to draw it, as SVG")
    options = parser.parse_args()
    runner = load_runner(EngineConfig(model=str(options.model)))
    texts = TextPrompts(options.model, options.text)
    lengths = read_azure(options.data, options.requests, options.longest)
    requests = [(texts.take(each.num_prompt), each.num_answer) for each in lengths]
    found = {width: measure(runner, requests, width) for width in WIDTHS}
    print(f"{len(requests)} requests, blocks of {runner.info.block_size}: blocks saved by sharing")
    print(f"{'width':>6}{'here':>9}{'forks':>8}{'paper, Alpaca':>15}{'ShareGPT':>10}")
    for width, (share, num_forks) in found.items():
        alpaca, sharegpt = (f"{each:.1%}" for each in PAPER[width]) if width in PAPER else ("-", "-")
        print(f"{width:6}{share:9.1%}{num_forks:8}{alpaca:>15}{sharegpt:>10}")
    if options.plot is not None:
        lines: dict[str, list[float | None]] = {
            "here, Azure": [share for share, _ in found.values()],
            "paper, ShareGPT": [PAPER[width][1] if width in PAPER else None for width in found],
            "paper, Alpaca": [PAPER[width][0] if width in PAPER else None for width in found],
        }
        options.plot.write_text(line_chart(list(found), lines, x_label="hypotheses"))


if __name__ == "__main__":
    run(main)
