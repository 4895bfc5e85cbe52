"""What the size of a block decides: memory wasted, blocks saved by sharing, the scheduler's own time, and
speed.

stemma bench block-size --model MODEL --data AzureLLMInferenceTrace_conv.csv --text TEXT [--plot
block-size.svg]

Waste, copies and the scheduler's time are those of the engine without a model, over requests of the trace
that share a system prompt in pairs. Speed is the model's, for the sizes that a CPU's kernels take:
normalized latency, end to end divided by the length of the answer, as in the paper's figure 18, which is at
its best from 16 to 128 tokens on ShareGPT and from 16 to 32 on Alpaca.
"""

import argparse
import statistics
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from benchmarks.azure import Lengths, read_azure
from benchmarks.chart import line_chart
from benchmarks.flags import output_file, positive
from benchmarks.modelless import ask, make_core, prompt_of
from benchmarks.program import run
from benchmarks.prompts import TextPrompts
from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import EngineConfig, Submit, TokenEvents
from engine.scheduler import Limits
from engine.sequence import SamplingParams

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
COMPILED = (16, 32, 64, 128)  # on a CPU
LONGEST = 2048
NUM_SHARED = 200  # tokens that two requests of a pair begin with


class Bookkeeping(NamedTuple):
    """What a block size costs apart from computing."""

    waste: float
    num_copied: int
    step_ms: float


def keep_books(requests: Sequence[Lengths], block_size: int) -> Bookkeeping:
    """Run the requests without a model."""
    core = make_core(1 << 15, block_size, max_sequences=64, context_length=LONGEST + NUM_SHARED)
    prompts = (
        (prompt_of(number // 2, NUM_SHARED) + prompt_of(number + 1000, each.num_prompt), each.num_answer)
        for number, each in enumerate(requests)
    )
    ask(core, prompts)
    started, num_steps = time.perf_counter(), 0
    while core.has_work:
        core.step()
        num_steps += 1
    seconds = time.perf_counter() - started
    stats = core.stats()
    return Bookkeeping(stats.kv_waste_mean, stats.num_copied_blocks, 1000 * seconds / num_steps)


def measure_latency(model: Path, prompts: Sequence["array[int]"], num_answer: int, block_size: int) -> float:
    """Normalized latency in milliseconds, the median over requests that arrive together."""
    runner = load_runner(EngineConfig(model=str(model), block_size=block_size))
    core = EngineCore(runner, Limits(max_batch_tokens=512, max_sequences=64))
    sampling = SamplingParams(max_tokens=num_answer, temperature=0.0)
    started = time.perf_counter()
    for number, prompt in enumerate(prompts):
        core.submit(
            Submit(request_id=str(number), prompt=prompt.tobytes(), sampling=sampling, namespace=b"bench")
        )
    latencies = []
    while core.has_work:
        for message in core.step():
            assert isinstance(message, TokenEvents), "nothing fails here"
            ended = sum(event.finish_reason is not None for event in message.events)
            latencies += [1000 * (time.perf_counter() - started) / num_answer] * ended
    return statistics.median(latencies)


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(
        prog="stemma bench block-size", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="Azure's conversation trace")
    parser.add_argument("--text", type=Path, required=True, help="a long text to cut prompts from")
    parser.add_argument("--requests", type=positive, default=60, help="for the bookkeeping")
    parser.add_argument("--users", type=positive, default=8, help="for the latency")
    parser.add_argument("--plot", type=output_file, help="where to draw it, as SVG")
    options = parser.parse_args()
    requests = read_azure(options.data, options.requests, LONGEST)
    texts = TextPrompts(options.model, options.text)
    prompts = [texts.take(300) for _ in range(options.users)]
    books, latencies = {}, {}
    for size in tqdm(SIZES, unit="size"):
        books[size] = keep_books(requests, size)
        if size in COMPILED:
            latencies[size] = measure_latency(options.model, prompts, 32, size)
    print(f"{'block':>6}{'KV waste':>10}{'copies':>8}{'bookkeeping':>14}{'latency':>20}")
    for size, each in books.items():
        speed = f"{latencies[size]:.1f} ms a token" if size in latencies else "-"
        print(f"{size:6}{each.waste:10.2%}{each.num_copied:8}{each.step_ms:11.3f} ms{speed:>20}")
    if options.plot is not None:
        lines = {"KV waste": [each.waste for each in books.values()]}
        options.plot.write_text(line_chart(SIZES, lines, x_label="tokens of a block"))


if __name__ == "__main__":
    run(main)
