"""What products, keys and values of few bits cost in quality, and what they save in time and memory.

A text is read in windows that do not see each other. For each kind of product: the perplexity; how often the
likeliest next token is the one that float32 finds likeliest, given the same text before it; the memory that
the process grew by when the model was loaded; and the time of steps of so many tokens of one prompt.

Quality is that of deterministic products: with "int8" and "packed" all of them are of few bits, as they are
in small steps, whatever is faster here for large ones. Time and memory are those of products as served.

python -m benchmarks.quality --model data/models/SmolLM2-135M-Instruct.Q4_1.gguf --data text.txt
"""

import argparse
import gc
import resource
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from benchmarks.flags import positive
from benchmarks.program import run
from engine.core import EngineCore
from engine.loading import load_runner
from engine.memory import release_unused
from engine.messages import EngineConfig, Submit, TokenEvents, TokenLogprob
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from gateway.conversation.prompt import load_prompts
from kernels.byte_cache import takes_bytes

STEP_SIZES = (1, 8, 32, 256)  # tokens
LIMITS = Limits(max_batch_tokens=256, max_sequences=1)
SAMPLING = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
STATM = Path("/proc/self/statm")  # Linux has it


@dataclass(frozen=True, slots=True)
class Mode:
    """One kind of products, and of keys and values."""

    dtype: Literal["bfloat16", "float32"]
    products: Literal["full", "int8", "packed"]
    kv_dtype: Literal["full", "int8"] = "full"

    @property
    def name(self) -> str:
        """As it is printed."""
        parts = [self.dtype] + [self.products] * (self.products != "full")
        return ", ".join(parts + ["kv int8"] * (self.kv_dtype == "int8"))

    def config(self, model: Path, *, deterministic: bool) -> EngineConfig:
        """What an engine of this mode is started with."""
        return EngineConfig(
            model=str(model),
            dtype=self.dtype,
            products=self.products,
            kv_dtype=self.kv_dtype,
            deterministic=deterministic,
            kv_bytes=1 << 28,
        )


MODES = (
    Mode("float32", "full"),
    Mode("bfloat16", "full"),
    Mode("bfloat16", "int8"),
    Mode("bfloat16", "int8", "int8"),
    Mode("bfloat16", "packed"),
)


@dataclass(frozen=True, slots=True)
class Quality:
    """What a model says of a text, token by token, the first of each window left out."""

    logprobs: list[float]
    likeliest: list[int]

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability."""
        return exp(-sum(self.logprobs) / len(self.logprobs))

    def agreement(self, other: "Quality") -> float:
        """The share of places where both find the same token likeliest."""
        pairs = zip(self.likeliest, other.likeliest, strict=True)
        return sum(mine == its for mine, its in pairs) / len(self.likeliest)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a mode takes."""

    num_bytes: int
    seconds: dict[int, float]  # of a step, by its tokens


def weigh(runner: ModelRunner, windows: Sequence[bytes], done: Callable[[], object]) -> Quality:
    """Read every window, one after the other; `done` is called after each."""
    quality = Quality([], [])
    for window in windows:
        for each in _weigh_window(EngineCore(runner, LIMITS), window):
            quality.logprobs.append(each.logprob)
            quality.likeliest.append(each.top[0][0])
        done()
    return quality


def _weigh_window(core: EngineCore, window: bytes) -> list[TokenLogprob]:
    core.submit(Submit(request_id="window", prompt=window, sampling=SAMPLING, namespace=b"a"))
    weighed: list[TokenLogprob] = []
    while core.has_work:
        for message in core.step():
            assert isinstance(message, TokenEvents), "no step fails here"
            for event in message.events:
                weighed += event.prompt_logprobs or []
    return weighed


def measure_cost(mode: Mode, model: Path) -> Cost:
    """Load the model as it is served, and let it compute."""
    before = _resident_bytes()
    runner = load_runner(mode.config(model, deterministic=False))
    num_bytes = _resident_bytes() - before
    return Cost(num_bytes, runner.measure_steps(STEP_SIZES))


def suits(mode: Mode, model: Path) -> bool:
    """Whether the model's heads can be kept as the mode says."""
    if mode.kv_dtype == "full":
        return True
    head_dim = load_runner(MODES[0].config(model, deterministic=False)).pool.values.shape[-1]
    gc.collect()
    release_unused()
    return takes_bytes(head_dim)


def _resident_bytes() -> int:
    gc.collect()
    release_unused()
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def read_windows(model: Path, text: str, *, num_tokens: int, window: int) -> list[bytes]:
    """The text's first tokens, cut into windows; a rest that is too short to say anything is dropped."""
    ids: array[int] = load_prompts(model).encode(text)[:num_tokens]
    windows = [ids[start : start + window] for start in range(0, len(ids), window)]
    return [each.tobytes() for each in windows if len(each) > 1]


def table(modes: Sequence[Mode], qualities: Sequence[Quality], costs: Sequence[Cost]) -> str:
    """Both by mode: float32 is the first, bfloat16 the second."""
    times = [f"{size} tok" for size in STEP_SIZES]
    heads = ["", "perplexity", "/ bf16", "agreement", "memory MB", *times]
    rows = [heads]
    for mode, quality, cost in zip(modes, qualities, costs, strict=True):
        rows.append(
            [
                mode.name,
                f"{quality.perplexity:.3f}",
                f"{quality.perplexity / qualities[1].perplexity:.4f}",
                f"{quality.agreement(qualities[0]):.2%}",
                f"{cost.num_bytes / 1e6:.0f}",
                *(f"{1000 * cost.seconds[size] / size:.2f}" for size in STEP_SIZES),
            ]
        )
    lines = [
        "  ".join(f"{cell:>{23 if column == 0 else 10}}" for column, cell in enumerate(row)) for row in rows
    ]
    return "\n".join([*lines, "times: milliseconds a token, in steps of so many tokens"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    options = _parser().parse_args(arguments)
    text = options.data.read_text(encoding="utf-8")
    windows = read_windows(options.model, text, num_tokens=options.tokens, window=options.window)
    if not windows:
        raise SystemExit(f"{options.data} is too short")
    # Memory first: what a run leaves behind would be taken again, and not seen.
    modes = [mode for mode in MODES if suits(mode, options.model)]
    costs = [measure_cost(mode, options.model) for mode in tqdm(modes, desc="time and memory", unit="mode")]
    qualities = []
    with tqdm(total=len(modes) * len(windows), desc="quality", unit="window") as bar:
        for mode in modes:
            runner = load_runner(mode.config(options.model, deterministic=True))
            qualities.append(weigh(runner, windows, bar.update))
    print(table(modes, qualities, costs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stemma bench quality", description="Perplexity, memory and speed by kind of matrix products."
    )
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file or a folder")
    parser.add_argument("--data", type=Path, required=True, help="a text file")
    parser.add_argument("--tokens", type=positive, default=3072, help="from the text's start")
    parser.add_argument("--window", type=positive, default=1024, help="tokens that see each other")
    return parser


if __name__ == "__main__":
    run(main)
