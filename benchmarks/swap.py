"""Bringing a conversation back: moving its blocks from the CPU's memory, or computing them again, by block
size.

stemma bench swap --model MODEL [--tokens 1024] [--plot swap.svg]

Moving is the pool's own gather and scatter. Computing is the model's prefill of the same tokens; sizes below
16 are not compiled for a CPU, where prefill does not depend on them. The paper's figure 19: swapping is slow
for small blocks, for they make many small copies; recomputing is the same for all; between 16 and 64 tokens
both are alike. On a CPU both sides of a move are the same memory, so moving stands for what a GPU's host
tier costs only in its shape.
"""

import argparse
import statistics
import time
from array import array
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.chart import line_chart
from benchmarks.flags import output_file, positive
from benchmarks.program import run
from engine.kv_pool import KVPool
from engine.loading import DTYPES, load_runner
from engine.messages import EngineConfig
from engine.models.config import ModelConfig
from engine.sequence import SamplingParams, Sequence
from engine.step import Span, Step
from engine.weights import load
from kernels import Kernels
from prefix_cache.lease import Lease
from prefix_cache.node import Node
from prefix_cache.plan import BlockId

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
COMPILED = (16, 32, 64, 128)
ROUNDS = 5


def measure_move(model: ModelConfig, num_tokens: int, block_size: int) -> float:
    """Milliseconds to bring blocks out of and back into a pool, each block for itself as a list of them."""
    num_blocks = -(-num_tokens // block_size)
    pool = KVPool(
        model,
        2 * num_blocks,
        block_size,
        dtype=DTYPES["bfloat16"],
        device=torch.device("cpu"),
        operations=Kernels.cpu(),
    )
    pool.keys.zero_()
    pool.values.zero_()
    blocks = [BlockId(2 * number) for number in range(num_blocks)]
    staging = torch.empty(num_blocks, pool.bytes_per_block, dtype=torch.uint8)
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        pool.gather(blocks, staging)
        pool.scatter(blocks, staging)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def measure_compute(path: Path, num_tokens: int, block_size: int) -> float:
    """Milliseconds to compute the tokens of a prompt, in steps of at most 512."""
    runner = load_runner(EngineConfig(model=str(path), block_size=block_size))
    sequence = Sequence(
        "r", 0, array("i", range(num_tokens)), num_tokens, SamplingParams(max_tokens=1), b"bench"
    )
    blocks = [BlockId(number) for number in range(-(-num_tokens // block_size))]
    sequence.lease = Lease(b"bench", Node(b""), 0, 0, 0.0, blocks=blocks)
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for start in range(0, num_tokens, 512):
            runner.run(Step((Span(sequence, start, min(start + 512, num_tokens)),)))
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(
        prog="stemma bench swap", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=positive, default=1024)
    parser.add_argument("--plot", type=output_file, help="where to draw it, as SVG")
    options = parser.parse_args()
    model, _ = load(options.model, torch.bfloat16)
    moves, computed = {}, {}
    for size in tqdm(SIZES, unit="size"):
        moves[size] = measure_move(model, options.tokens, size)
        if size in COMPILED:
            computed[size] = measure_compute(options.model, options.tokens, size)
    print(f"{options.tokens} tokens, medians of {ROUNDS}, in ms")
    print(f"{'block':>6}{'out and back':>14}{'recompute':>12}")
    for size, milliseconds in moves.items():
        again = f"{computed[size]:.1f}" if size in computed else "-"
        print(f"{size:6}{milliseconds:14.2f}{again:>12}")
    if options.plot is not None:
        flat = statistics.median(computed.values())
        lines = {
            "swap out and in": list(moves.values()),
            "recompute": [computed.get(size, flat) for size in SIZES],
        }
        chart = line_chart(SIZES, lines, x_label="tokens of a block", write="{:.0f} ms".format)
        options.plot.write_text(chart)


if __name__ == "__main__":
    run(main)
