"""Copy, gather and scatter whole blocks on a CPU, on the calling thread and without the interpreter's lock.

The contracts are those of `kernels.copy_blocks` and `kernels.move_blocks`, for pools and staging that are
contiguous as a whole.
"""

import numpy as np
import torch

__all__ = ["copy_blocks", "gather_blocks", "scatter_blocks"]


def copy_blocks(
    pool: torch.Tensor,  # [num_areas, num_blocks, row_bytes] uint8
    sources: torch.Tensor,  # [num_copies] int64
    targets: torch.Tensor,  # [num_copies] int64
) -> None:
    """Torch is as fast as memory."""
    pool[:, targets] = pool[:, sources]


def gather_blocks(
    pool: torch.Tensor,  # [2, num_layers, num_blocks, row_bytes] uint8
    blocks: torch.Tensor,  # [num_moved] int64
    staging: torch.Tensor,  # [num_moved, 2, num_layers, row_bytes] uint8
) -> None:
    """Write every row of staging once."""
    rows, lines = _rows_and_lines(pool, staging)
    # "clip" is what lets numpy write to staging directly; no row is out of range.
    np.take(rows, _numbers(pool, blocks), axis=0, out=lines, mode="clip")


def scatter_blocks(
    pool: torch.Tensor,  # [2, num_layers, num_blocks, row_bytes] uint8
    blocks: torch.Tensor,  # [num_moved] int64, none twice
    staging: torch.Tensor,  # [num_moved, 2, num_layers, row_bytes] uint8
) -> None:
    """Write every row of the blocks once."""
    rows, lines = _rows_and_lines(pool, staging)
    rows[_numbers(pool, blocks)] = lines


def _rows_and_lines(
    pool: torch.Tensor, staging: torch.Tensor
) -> (
    "tuple[np.ndarray[tuple[int, int], np.dtype[np.uint8]], np.ndarray[tuple[int, int], np.dtype[np.uint8]]]"
):
    """Both as matrices of row_bytes columns."""
    row_bytes = pool.shape[3]
    return pool.view(-1, row_bytes).numpy(), staging.view(-1, row_bytes).numpy()


def _numbers(pool: torch.Tensor, blocks: torch.Tensor) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Which rows of the pool the rows of staging are, in their order."""
    num_kinds, num_layers, num_blocks, _ = pool.shape
    first_rows = np.arange(0, num_kinds * num_layers * num_blocks, num_blocks)  # of block 0 in every layer
    return (blocks.numpy()[:, None] + first_rows).reshape(-1)
