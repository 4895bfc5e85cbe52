"""How near attention on the CPU comes to the speed of memory, for SmolLM2-135M's heads or others.

python -m benchmarks.attention --rounds 9 --layers 30

Every layer has a pool of its own, so that nothing is near when its turn comes. Between rounds a plain sum
over as many bytes is timed: the rate at which this machine reads, in the same minutes. Prefilling is bound by
arithmetic instead, so its products are counted.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import torch

from benchmarks.flags import positive
from benchmarks.program import run
from kernels import Kernels
from kernels.partitions import find_leaders

BLOCK_SIZE = 16
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Load:
    """What one step attends to."""

    name: str
    num_sequences: int
    context: int  # tokens of each sequence
    num_shared: int = 0  # of which all sequences hold the first ones together; whole blocks
    num_new: int = 1  # of which the last ones are queries

    def num_blocks(self) -> int:
        """Blocks that differ."""
        num_common = self.num_shared // BLOCK_SIZE
        return num_common + self.num_sequences * (-(-self.context // BLOCK_SIZE) - num_common)

    def num_operations(self, heads: Heads) -> int:
        """Multiplications and additions of one layer's two products."""
        seen = self.num_new * (self.context - self.num_new) + self.num_new * (self.num_new + 1) // 2
        return 4 * self.num_sequences * seen * heads.num_heads * heads.head_dim


LOADS = [
    Load("decode", 1, 900),
    Load("decode", 8, 900),
    Load("decode", 32, 100),
    Load("decode", 32, 900, num_shared=592),
    Load("prefill", 1, 256, num_new=256),
    Load("prefill", 1, 1280, num_new=256),
]


class Step:
    """One step's attention in every layer."""

    def __init__(self, load: Load, heads: Heads, num_layers: int) -> None:
        generator = torch.Generator().manual_seed(1)
        size = (load.num_blocks(), heads.num_kv_heads, heads.head_dim, BLOCK_SIZE)
        self.pools = [
            torch.randn(2, *size, generator=generator).to(DTYPE) for _ in range(num_layers)
        ]  # the numbers are any, so their order in a block says nothing
        num_tokens = load.num_sequences * load.num_new
        self._query = torch.randn(num_tokens, heads.num_heads, heads.head_dim, generator=generator).to(DTYPE)
        tables = _block_tables(load, generator)
        starts = torch.arange(load.num_sequences + 1, dtype=torch.int32) * load.num_new
        self._rest = (
            tables,
            torch.full((load.num_sequences,), load.context, dtype=torch.int32),
            starts,
            torch.from_numpy(find_leaders(tables.numpy(), load.context, BLOCK_SIZE)),
            heads.head_dim**-0.5,
        )

    def attend(self, kernels: Kernels) -> None:
        """All layers, one after the other."""
        for keys, values in self.pools:
            kernels.paged_attention(self._query, keys, values.view(_transposed(keys)), *self._rest)

    def read(self) -> None:
        """A sum over all that attention reads."""
        for pool in self.pools:
            pool.view(torch.float32).sum()


def _transposed(keys: torch.Tensor) -> tuple[int, ...]:
    return (*keys.shape[:2], keys.shape[3], keys.shape[2])


def _block_tables(load: Load, generator: torch.Generator) -> torch.Tensor:
    """Blocks lie in the pool as chance has it."""
    num_common = load.num_shared // BLOCK_SIZE
    order = torch.randperm(load.num_blocks(), generator=generator).int()
    own = order[num_common:].view(load.num_sequences, -1)
    return torch.cat([order[:num_common].expand(load.num_sequences, -1), own], dim=1).contiguous()


def measure(step: Step, kernels: Kernels, num_rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of attention and of reading, in turns; a round before the first is not counted."""
    attending, reading = [], []
    for _ in range(num_rounds + 1):
        started = time.perf_counter()
        step.attend(kernels)
        ended = time.perf_counter()
        step.read()
        attending.append(ended - started)
        reading.append(time.perf_counter() - ended)
    return attending[1:], reading[1:]


def _describe(load: Load) -> str:
    shared = f", {load.num_shared} shared" if load.num_shared else ""
    before = load.context - load.num_new
    if load.num_new > 1:
        return f"{load.name} {load.num_new} after {before}"
    return f"{load.name} {load.num_sequences} x {load.context}{shared}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="stemma bench attention", description="Attention on the CPU, beside the rate at which it reads."
    )
    parser.add_argument("--layers", type=positive, default=30)
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--heads", type=positive, default=9)
    parser.add_argument("--kv-heads", type=positive, default=3)
    parser.add_argument("--head-dim", type=positive, default=64)
    options = parser.parse_args()
    heads = Heads(options.heads, options.kv_heads, options.head_dim)
    kernels = Kernels.cpu()
    print(f"medians (minima) of {options.rounds} rounds, {options.layers} layers, {DTYPE}")
    for load in LOADS:
        step = Step(load, heads, options.layers)
        attending, reading = measure(step, kernels, options.rounds)
        middle, best = statistics.median(attending), min(attending)
        num_bytes = sum(pool.nbytes for pool in step.pools)
        read_rate = num_bytes / statistics.median(reading) / 1e9
        operations = load.num_operations(heads) * options.layers
        print(
            f"{_describe(load):28} {middle * 1000:8.2f} ({best * 1000:.2f}) ms a step, "
            f"{middle * 1000 / options.layers:7.3f} ms a layer; {num_bytes / middle / 1e9:5.1f} GB/s of "
            f"{read_rate:5.1f} read; {operations / middle / 1e9:6.0f} GFLOP/s"
        )


if __name__ == "__main__":
    run(main)
