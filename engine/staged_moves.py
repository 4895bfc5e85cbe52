"""Blocks on their way between a device and the host, through contiguous memory on the device.

Owns the order of a move: what steps have been asked for so far comes first, then the kernel and one copy over
the bus, beside whatever steps come after. A bus wants few large copies; a pool has many small rows.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from kernels.operations import Operations

__all__ = ["StagedMoves", "beside_steps"]


class StagedMoves:
    """Moves for one pool. Any thread may call it: an event waits for one move alone."""

    def __init__(
        self, pool: torch.Tensor, operations: Operations, beside: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """pool: [2, num_layers, num_blocks, row_bytes] uint8. `beside` is `beside_steps` of the pool's own
        stream: what is asked for within it has happened when it is left.
        """
        self._pool = pool
        self._operations = operations
        self._beside = beside

    def gather(self, blocks: torch.Tensor, out: torch.Tensor) -> None:
        """blocks: [num_moved] int64; out: [num_moved, 2, num_layers, row_bytes] uint8, contiguous, both in
        the host's memory; `out` is best pinned.
        """
        with self._beside():
            staging = torch.empty(out.shape, dtype=out.dtype, device=self._pool.device)
            self._operations.gather_blocks(self._pool, self._here(blocks), staging)
            out.copy_(staging, non_blocking=True)

    def scatter(self, blocks: torch.Tensor, source: torch.Tensor) -> None:
        """As `gather` has it, the other way."""
        with self._beside():
            staging = source.to(self._pool.device, non_blocking=True)
            self._operations.scatter_blocks(self._pool, self._here(blocks), staging)

    def _here(self, blocks: torch.Tensor) -> torch.Tensor:
        return blocks.to(self._pool.device, non_blocking=True)


@contextmanager
def beside_steps(stream: torch.cuda.Stream) -> Iterator[None]:
    """Ask for things on a stream of one's own, after all that steps, on the device's default stream, were
    asked for so far. They have happened on leaving; the thread sleeps meanwhile.
    """
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream(stream.device))
        yield
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record(stream)
    done.synchronize()
