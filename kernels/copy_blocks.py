"""Copy whole blocks within a pool: a step's whole plan, keys and values of every layer, in one launch.

pool[:, targets[i]] = pool[:, sources[i]]

No block is both a source and a target, and no target is named twice, so the order does not matter. The pool
is seen as bytes, whatever its type.
"""

import torch
import triton
import triton.language as tl

__all__ = ["TILE_BYTES", "copy_blocks", "copy_blocks_reference", "copy_tile"]

TILE_BYTES = 8192  # of one program: with four warps, four loads of 16 bytes are under way in each thread


def copy_blocks(
    pool: torch.Tensor,  # [num_areas, num_blocks, row_bytes] uint8: an area is one layer's keys or its values
    sources: torch.Tensor,  # [num_copies] int64
    targets: torch.Tensor,  # [num_copies] int64
) -> None:
    """One program a copy, area and tile of a row."""
    assert pool.dtype == torch.uint8, "blocks are moved as bytes"
    assert pool.is_contiguous(), "programs count bytes from the first"
    num_areas, num_blocks, row_bytes = pool.shape
    grid = (len(sources), num_areas, triton.cdiv(row_bytes, TILE_BYTES))
    _copy_blocks_kernel[grid](pool, sources, targets, num_blocks, row_bytes, TILE=TILE_BYTES)


@triton.jit
def copy_tile(source_ptr, target_ptr, num_bytes, TILE: tl.constexpr):  # TILE: a power of two
    """Copy the tile of a row that is this program's third number."""
    places = tl.program_id(2) * TILE + tl.arange(0, TILE)  # [TILE]
    inside = places < num_bytes  # the last tile may reach past the row
    tl.store(target_ptr + places, tl.load(source_ptr + places, mask=inside, other=0), mask=inside)


@triton.jit
def _copy_blocks_kernel(pool_ptr, sources_ptr, targets_ptr, num_blocks, row_bytes, TILE: tl.constexpr):
    copy, area = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source = area * num_blocks + tl.load(sources_ptr + copy)
    target = area * num_blocks + tl.load(targets_ptr + copy)
    copy_tile(pool_ptr + source * row_bytes, pool_ptr + target * row_bytes, row_bytes, TILE)


def copy_blocks_reference(
    pool: torch.Tensor,  # [num_areas, num_blocks, ...]
    sources: torch.Tensor,  # [num_copies] int64
    targets: torch.Tensor,  # [num_copies] int64
) -> None:
    """The same in plain torch."""
    pool[:, targets] = pool[:, sources]
