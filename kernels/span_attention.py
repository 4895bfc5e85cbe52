"""Causal attention of long spans over paged keys and values, by tiles of query rows.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j <= position(t), where

    weight = softmax(scale * query[t, h] . key[j, h // group])

A program's rows are all query heads of one key head, of as many tokens as it has room for, so that a tile of
keys is read once for all of them; its scores never leave the chip (Dao, 2023). What every row sees is
taken without masks, and the rest is the tiles at the diagonal.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.attention_tiles import (
    HeadShape,
    Scales,
    fold_nothing,
    fold_tile,
    launch_of_spans,
    open_tile,
    score_precision,
    score_tile,
    write_rows,
)
from kernels.attention_work import QueryTiles
from kernels.plain_attention import read_spans, weigh
from kernels.pool_types import find_capability

__all__ = ["attend_spans", "attend_spans_reference", "launch_tiles"]


def attend_spans(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
) -> None:
    """One program a tile and key head; blocks hold a power of two of tokens, from 16 on."""
    launch_tiles(_span_attention_kernel, query, keys, values, tiles, out, (scales.powers, scales.values))


def launch_tiles(
    kernel: Any,
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
    numbers: tuple[float, ...],  # scales of scores and of values, and what is the kernel's own
) -> None:
    """One program a tile and key head; blocks hold a power of two of tokens, from 16 on."""
    for tensor in (query, keys, values, tiles.block_tables, out):
        assert tensor.is_contiguous(), "programs count elements from the first"
    shape, num_kv_heads = HeadShape.of(query, keys), keys.shape[1]
    assert shape.block_size % 16 == 0, "16 slots of a block are read at once"
    launch = launch_of_spans(shape, find_capability(query.device))
    kernel[(num_kv_heads, len(tiles.sequences))](
        query,
        keys,
        values,
        tiles.block_tables,
        tiles.context_lens,
        tiles.cu_seqlens_q,
        tiles.sequences,
        tiles.first_tokens,
        out,
        tiles.block_tables.shape[1],
        *numbers,
        KV_HEADS=num_kv_heads,
        GROUP=shape.group,
        ROWS=launch.rows,
        HEAD_DIM=shape.head_dim,
        DIMS=shape.dims,
        BLOCK_SIZE=shape.block_size,
        TILE=launch.tile,
        PRECISION=score_precision(query.dtype),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


@triton.jit(do_not_specialize=["max_blocks"])
def _span_attention_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    contexts_ptr,
    starts_ptr,
    sequences_ptr,
    first_tokens_ptr,
    out_ptr,
    max_blocks,
    score_scale,
    value_scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,  # a power of two, at least GROUP and 16
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,  # a power of two, at least HEAD_DIM and 16
    BLOCK_SIZE: tl.constexpr,  # a power of two, at least 16
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    sequence = tl.load(sequences_ptr + tl.program_id(1)).to(tl.int64)
    if sequence < 0:
        return
    table_ptr, query, places, inside, positions, position, last = open_tile(
        query_ptr, tables_ptr, contexts_ptr, starts_ptr, first_tokens_ptr, sequence, max_blocks,
        KV_HEADS, GROUP, ROWS, HEAD_DIM, DIMS,
    )  # fmt: skip
    pool = keys_ptr, values_ptr, table_ptr, tl.program_id(0)
    whole = tl.maximum(position + 1, 0) // TILE * TILE  # tokens in tiles that every row sees all of
    folded = fold_nothing(ROWS, DIMS)
    for start in range(0, whole, TILE):
        slots = start + tl.arange(0, TILE)
        scores, bases = score_tile(query, pool, slots, last, KV_HEADS, HEAD_DIM, BLOCK_SIZE, PRECISION)
        scores *= score_scale
        folded = fold_tile(scores, folded, query, pool, bases, slots, None, HEAD_DIM, BLOCK_SIZE, PRECISION)
    for start in range(whole, last, TILE):
        slots = start + tl.arange(0, TILE)
        scores, bases = score_tile(query, pool, slots, last, KV_HEADS, HEAD_DIM, BLOCK_SIZE, PRECISION)
        scores *= score_scale
        scores = tl.where(slots[None, :] <= positions[:, None], scores, float("-inf"))
        folded = fold_tile(scores, folded, query, pool, bases, slots, last, HEAD_DIM, BLOCK_SIZE, PRECISION)
    write_rows(out_ptr + places, folded, value_scale, inside)


def attend_spans_reference(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
) -> None:
    """The same in plain torch: span by span, a row of weights each."""
    for span in read_spans(query, keys, values, tiles, scales):
        out[span.tokens] = weigh(span, span.distances < 0).to(out.dtype)
