"""What a GPU is held against: how fast it copies within its memory, and how fast it multiplies matrices."""

from dataclasses import dataclass
from typing import Literal

import torch

from scripts.gpu_check.clock import Clock
from scripts.gpu_check.counts import Work

__all__ = ["Yardstick", "Yardsticks", "measure_yardsticks"]

Yardstick = Literal["copy", "matrix"]
"""Which of the two bounds some work."""


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Measured, in the same minutes as all else."""

    copy: float  # bytes a second, read and written together
    matrix: float  # operations a second in bfloat16

    def __str__(self) -> str:
        return f"{self.copy / 1e9:,.0f} GB/s copied (read and written), {self.matrix / 1e12:,.0f} TFLOP/s"

    def floor(self, work: Work) -> tuple[float, Yardstick]:
        """The least microseconds that work takes, and what bounds it."""
        moving, computing = work.num_bytes / self.copy, work.operations / self.matrix
        return max(moving, computing) * 1e6, "copy" if moving >= computing else "matrix"


def measure_yardsticks(
    clock: Clock, device: torch.device, *, num_bytes: int = 4 << 30, size: int = 8192
) -> Yardsticks:
    """From a copy of so many bytes, and a product of square matrices."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying, _ = clock.measure(lambda: target.copy_(source), is_recorded=False)
    left, right = torch.randn(2, size, size, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(left)
    multiplying, _ = clock.measure(lambda: torch.matmul(left, right, out=product), is_recorded=False)
    return Yardsticks(2 * num_bytes / copying * 1e6, 2 * size**3 / multiplying * 1e6)
