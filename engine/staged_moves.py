"""Blocks on their way between a device and the host, through contiguous memory on the device.

Owns how a move is cut. A bus wants few large copies and a pool has many small rows, so a kernel brings rows
together, some layers of some blocks at a time: while it works on one part, the bus carries the next. Layers
go in their order, all blocks' first ones first.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from engine.lanes import Lane, Mark, Pipeline
from engine.transfer import send
from kernels.operations import Operations

__all__ = ["Cut", "StagedMoves"]

Run = tuple[torch.Tensor, torch.Tensor]
"""Blocks, [num_moved] int64, and their bytes outside the pool, [num_moved, 2, num_layers, row_bytes] uint8.

Both are contiguous and in the host's memory; the bytes are best in pinned memory.
"""


@dataclass(frozen=True, slots=True)
class Cut:
    """How large the parts of a move are."""

    part_bytes: int = 4 << 20  # of memory on the device; a move has two parts at a time
    copy_bytes: int = 512 << 10  # over the bus at once: 10 to 20 microseconds, more than asking for it takes

    def num_layers(self, num_layers: int, row_bytes: int) -> int:
        """Of one part. Only in one block they lie beside each other outside the pool."""
        return min(num_layers, -(-self.copy_bytes // row_bytes))

    def num_blocks(self, layers_bytes: int) -> int:
        """Of one part, whose layers take so many bytes of a block."""
        return max(1, self.part_bytes // layers_bytes)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some layers of some blocks."""

    blocks: torch.Tensor  # [num_moved] int64, on the host
    pool: torch.Tensor  # [2, num_layers, num_blocks, row_bytes] uint8
    outside: torch.Tensor  # [num_moved, 2, num_layers, row_bytes] uint8, on the host

    def staged(self, buffer: torch.Tensor) -> torch.Tensor:
        """As `outside`, contiguous."""
        return buffer[: self.outside.numel()].view(self.outside.shape)


class StagedMoves:
    """Moves for one pool. Any thread may call it: each move has memory of its own, and waits for itself."""

    def __init__(
        self, pool: torch.Tensor, operations: Operations, *, bus: Lane, kernels: Lane, cut: Cut | None = None
    ) -> None:
        """pool: [2, num_layers, num_blocks, row_bytes] uint8."""
        cut = cut or Cut()
        _, num_layers, _, row_bytes = pool.shape
        self._pool = pool
        self._operations = operations
        self._bus = bus
        self._kernels = kernels
        self._group = cut.num_layers(num_layers, row_bytes)
        self._num_blocks = cut.num_blocks(2 * self._group * row_bytes)
        self._buffer_bytes = self._num_blocks * 2 * self._group * row_bytes

    def gather(self, run: Run) -> None:
        """Read blocks as what steps were asked for so far leaves them. Their bytes are there on return."""
        with Pipeline(self._kernels, self._bus, self._buffer_bytes) as pipeline:
            self._kernels.follow_steps()
            for part in self._parts(run):
                pipeline.push(partial(self._gather, part), partial(_bring_back, part))

    def scatter(self, runs: Iterable[Run]) -> Iterator[int]:
        """Write blocks after all that steps were asked for so far. Tells of each run in their order how many
        blocks it was, when they are there; the next one is on its way then.
        """
        with Pipeline(self._bus, self._kernels, self._buffer_bytes) as pipeline:
            self._kernels.follow_steps()  # the bus need not: it writes to no block
            landing: deque[tuple[int, Mark]] = deque()
            for run in runs:
                for part in self._parts(run):
                    pipeline.push(partial(_bring, part), partial(self._scatter, part))
                landing.append((len(run[0]), self._kernels.mark()))
                if len(landing) > 1:
                    yield _landed(landing)
            while landing:
                yield _landed(landing)

    def _parts(self, run: Run) -> Iterator[_Part]:
        """All blocks' first layers come first."""
        blocks, outside = run
        for layer in range(0, outside.shape[2], self._group):
            layers = slice(layer, layer + self._group)
            for start in range(0, len(blocks), self._num_blocks):
                some = slice(start, start + self._num_blocks)
                yield _Part(blocks[some], self._pool[:, layers], outside[some, :, layers])

    def _gather(self, part: _Part, buffer: torch.Tensor) -> None:
        (blocks,) = send([part.blocks.numpy()], self._pool.device)
        self._operations.gather_blocks(part.pool, blocks, part.staged(buffer))

    def _scatter(self, part: _Part, buffer: torch.Tensor) -> None:
        (blocks,) = send([part.blocks.numpy()], self._pool.device)
        self._operations.scatter_blocks(part.pool, blocks, part.staged(buffer))


def _landed(landing: deque[tuple[int, Mark]]) -> int:
    num_blocks, mark = landing.popleft()
    mark.wait()
    return num_blocks


def _bring(part: _Part, buffer: torch.Tensor) -> None:
    _copy(part.outside, part.staged(buffer))


def _bring_back(part: _Part, buffer: torch.Tensor) -> None:
    _copy(part.staged(buffer), part.outside)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """One copy over the bus, or one for what lies beside each other: torch would gather the rest first."""
    if source.is_contiguous() and target.is_contiguous():
        target.copy_(source, non_blocking=True)
        return
    shape = (-1, *source.shape[2:])  # of keys or values of one block
    for there, here in zip(target.view(shape), source.view(shape), strict=True):
        there.copy_(here, non_blocking=True)
