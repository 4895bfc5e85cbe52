"""How long the engine's steps take, without a server: decoding by batch and context, and chunks of prompts.

python -m benchmarks.steps --model data/models/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import random
import statistics
import time
from pathlib import Path

from engine.core import EngineCore
from engine.messages import EngineConfig, Submit
from engine.runner import ModelRunner, load_runner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from prefix_cache.tokens import pack

CHUNK = 256
NUM_DECODES = 24


def run(runner: ModelRunner, num_sequences: int, num_tokens: int) -> list[float]:
    """Milliseconds of each step of a batch whose sequences decode together at the end."""
    core = EngineCore(runner, Limits(max_batch_tokens=CHUNK, max_sequences=64))
    rng = random.Random(num_sequences * num_tokens)
    # Later sequences wait while earlier ones are prefilled, and go on drawing; all meet in the last steps.
    num_prefill_steps = num_sequences * num_tokens // CHUNK
    sampling = SamplingParams(max_tokens=num_prefill_steps + NUM_DECODES, temperature=0.0)
    for number in range(num_sequences):
        prompt = pack([rng.randrange(runner.info.vocab_size) for _ in range(num_tokens)])
        core.submit(Submit(request_id=str(number), prompt=prompt, sampling=sampling, namespace=b"a"))
    times: list[float] = []
    while core.has_work and not (
        times and len(core.scheduler.running) < num_sequences and not core.scheduler.num_waiting
    ):
        started = time.perf_counter()
        core.step()
        times.append((time.perf_counter() - started) * 1000)
    return times


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description="Step times of the bare engine, in milliseconds.")
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    runner = load_runner(EngineConfig(model=str(options.model)))
    for num_sequences, num_tokens in ((1, 100), (1, 900), (8, 900), (32, 100), (32, 900)):
        times = run(runner, num_sequences, num_tokens)[-NUM_DECODES // 2 :]
        print(f"decode, {num_sequences} x {num_tokens} tokens: {statistics.median(times):.0f} ms")
    chunks = [run(runner, 1, 5 * CHUNK)[:5] for _ in range(3)]
    for place in (0, 4):
        middle = statistics.median(times[place] for times in chunks)
        print(f"prefill, {CHUNK} tokens after {place * CHUNK}: {middle:.0f} ms")


if __name__ == "__main__":
    main()
