"""Bring whole blocks of a pool together in contiguous memory, and back.

gather:   staging[i, kind, layer] = pool[kind, layer, blocks[i]]
scatter:  pool[kind, layer, blocks[i]] = staging[i, kind, layer]

`kind` is 0 for keys and 1 for values, so a row of staging is a block as it lies outside the pool: see
docs/data-layout.md. Some layers alone are moved by slicing both: `pool[:, 3:5]` and `staging[:, :, 3:5]`.
"""

import torch
import triton
import triton.language as tl

from kernels.copy_blocks import TILE_BYTES, copy_tile

__all__ = ["gather_blocks", "gather_blocks_reference", "scatter_blocks", "scatter_blocks_reference"]


def gather_blocks(
    pool: torch.Tensor,  # [2, num_layers, num_blocks, row_bytes] uint8
    blocks: torch.Tensor,  # [num_moved] int64
    staging: torch.Tensor,  # [num_moved, 2, num_layers, row_bytes] uint8
) -> None:
    """Only rows must be contiguous."""
    _move_blocks(pool, blocks, staging, is_gather=True)


def scatter_blocks(
    pool: torch.Tensor,  # [2, num_layers, num_blocks, row_bytes] uint8
    blocks: torch.Tensor,  # [num_moved] int64, none twice
    staging: torch.Tensor,  # [num_moved, 2, num_layers, row_bytes] uint8
) -> None:
    """Only rows must be contiguous."""
    _move_blocks(pool, blocks, staging, is_gather=False)


def _move_blocks(pool: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor, *, is_gather: bool) -> None:
    """One program a block, layer, kind and tile of a row."""
    assert pool.dtype == staging.dtype == torch.uint8, "blocks are moved as bytes"
    assert pool.stride(3) == staging.stride(3) == 1, "a row's bytes lie one after the other"
    assert staging.shape == (len(blocks), *pool.shape[:2], pool.shape[3]), "both hold the same layers"
    num_moved, num_kinds, num_layers, row_bytes = staging.shape
    _move_blocks_kernel[(num_moved, num_kinds * num_layers, triton.cdiv(row_bytes, TILE_BYTES))](
        pool,
        blocks,
        staging,
        *pool.stride()[:3],
        staging.stride(1),
        staging.stride(2),
        staging.stride(0),
        num_layers,
        row_bytes,
        IS_GATHER=is_gather,
        TILE=TILE_BYTES,
    )


@triton.jit
def _row_of(pointer, block, kind_stride, layer_stride, block_stride, num_layers):
    """Where the row begins of this program's kind and layer."""
    kind, layer = (tl.program_id(1) // num_layers).to(tl.int64), (tl.program_id(1) % num_layers).to(tl.int64)
    return pointer + kind * kind_stride + layer * layer_stride + block.to(tl.int64) * block_stride


@triton.jit
def _move_blocks_kernel(
    pool_ptr,
    blocks_ptr,
    staging_ptr,
    kind_stride,
    layer_stride,
    block_stride,
    staged_kind_stride,
    staged_layer_stride,
    staged_block_stride,
    num_layers,
    row_bytes,
    IS_GATHER: tl.constexpr,
    TILE: tl.constexpr,  # a power of two
):
    moved = tl.program_id(0)
    block = tl.load(blocks_ptr + moved)
    row_ptr = _row_of(pool_ptr, block, kind_stride, layer_stride, block_stride, num_layers)
    staged_ptr = _row_of(
        staging_ptr, moved, staged_kind_stride, staged_layer_stride, staged_block_stride, num_layers
    )
    if IS_GATHER:
        copy_tile(row_ptr, staged_ptr, row_bytes, TILE)
    else:
        copy_tile(staged_ptr, row_ptr, row_bytes, TILE)


def gather_blocks_reference(
    pool: torch.Tensor,  # [2, num_layers, num_blocks, row_bytes] uint8
    blocks: torch.Tensor,  # [num_moved] int64
    staging: torch.Tensor,  # [num_moved, 2, num_layers, row_bytes] uint8
) -> None:
    """The same in plain torch."""
    staging.copy_(pool[:, :, blocks].permute(2, 0, 1, 3))


def scatter_blocks_reference(
    pool: torch.Tensor,  # [2, num_layers, num_blocks, row_bytes] uint8
    blocks: torch.Tensor,  # [num_moved] int64, none twice
    staging: torch.Tensor,  # [num_moved, 2, num_layers, row_bytes] uint8
) -> None:
    """The same in plain torch."""
    pool[:, :, blocks] = staging.permute(1, 2, 0, 3)
