"""What this machine can do at most, measured: products a second, and the rate at which it reads memory.

Peaks are those of torch's library on all threads, the best of a few trials: what a step is held against.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Peaks", "measure_peaks"]

NUM_TRIALS = 5


@dataclass(frozen=True, slots=True)
class Peaks:
    """Operations and bytes a second; a multiplication and its addition are two operations."""

    bfloat16: float
    int8: float
    read: float

    def __str__(self) -> str:
        return (
            f"peaks here and now: {self.bfloat16 / 1e9:,.0f} GFLOP/s in bfloat16, "
            f"{self.int8 / 1e9:,.0f} GOP/s in 8 bits, {self.read / 1e9:.1f} GB/s read"
        )


def measure_peaks(size: int = 2048, num_bytes: int = 1 << 30) -> Peaks:
    """From square matrices of that size, and from a sum over so many bytes."""
    left, right = torch.randn(2, size, size).bfloat16()
    codes, more = torch.randint(-9, 9, (2, size, size), dtype=torch.int8)
    numbers = torch.ones(num_bytes // 4)
    operations = 2 * size**3
    return Peaks(
        operations / _least(lambda: left @ right),
        operations / _least(lambda: torch._int_mm(codes, more)),
        num_bytes / _least(lambda: torch.dot(numbers, numbers), lambda: numbers.sum()),
    )


def _least(*works: Callable[[], object]) -> float:
    """The least seconds of any trial of any of them, after one that does not count."""
    seconds = []
    for work in works:
        work()
        for _ in range(NUM_TRIALS):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
    return min(seconds)
