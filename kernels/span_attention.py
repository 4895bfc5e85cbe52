"""Causal attention of long spans over paged keys and values, by tiles of query rows.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j <= position(t), where

    weight = softmax(scale * query[t, h] . key[j, h // group])

A program's rows are all query heads of one key head, of as many tokens as it has room for, so that a tile of
keys is read once for all of them; its scores never leave the chip (Dao, 2023). What every row sees is
taken without masks, and the rest is the tiles at the diagonal.
"""

import torch
import triton
import triton.language as tl

from kernels.attention_tiles import (
    HeadShape,
    Scales,
    find_bases,
    find_capability,
    fold,
    launch_of_spans,
    load_keys,
    load_values,
    multiply,
    place_rows,
    score_precision,
    write_rows,
)
from kernels.attention_work import QueryTiles
from kernels.plain_attention import read_spans, weigh

__all__ = ["attend_spans", "attend_spans_reference"]


def attend_spans(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
) -> None:
    """One program a tile and key head; blocks hold a power of two of tokens, from 16 on."""
    for tensor in (query, keys, values, tiles.block_tables, out):
        assert tensor.is_contiguous(), "programs count elements from the first"
    shape, num_kv_heads = HeadShape.of(query, keys), keys.shape[1]
    assert shape.block_size % 16 == 0, "16 slots of a block are read at once"
    launch = launch_of_spans(shape, find_capability(query.device))
    _span_attention_kernel[(num_kv_heads, len(tiles.sequences))](
        query,
        keys,
        values,
        tiles.block_tables,
        tiles.context_lens,
        tiles.cu_seqlens_q,
        tiles.sequences,
        tiles.first_tokens,
        out,
        scales.powers,
        scales.values,
        tiles.block_tables.shape[1],
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
    score_scale,
    value_scale,
    max_blocks,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,  # a power of two, at least GROUP and 16
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,  # a power of two, at least HEAD_DIM and 16
    BLOCK_SIZE: tl.constexpr,  # a power of two, at least 16
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    kv_head, tile = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(sequences_ptr + tile).to(tl.int64)
    if sequence < 0:
        return
    table_ptr = tables_ptr + sequence * max_blocks
    first = tl.load(first_tokens_ptr + tile)
    end = tl.load(starts_ptr + sequence + 1)
    before = tl.load(contexts_ptr + sequence) - end  # a token's position less its place in the step
    query_places, inside = place_rows(first, end, kv_head, KV_HEADS, GROUP, ROWS, HEAD_DIM, DIMS)
    query = tl.load(query_ptr + query_places, mask=inside, other=0.0)  # [ROWS, DIMS]
    positions = before + first + tl.arange(0, ROWS) // GROUP  # [ROWS]
    last = tl.minimum(before + first + ROWS // GROUP, before + end)  # tokens that some row sees
    whole = tl.maximum(before + first + 1, 0) // TILE * TILE  # tokens in tiles that every row sees all of
    running_max = tl.full((ROWS,), float("-inf"), tl.float32)
    running_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DIMS), tl.float32)
    for start in range(0, whole, TILE):
        slots = start + tl.arange(0, TILE)
        bases = find_bases(table_ptr, slots, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        key = load_keys(keys_ptr, bases, slots, HEAD_DIM, DIMS, BLOCK_SIZE).to(query.dtype)
        scores = multiply(query, key, None, PRECISION) * score_scale  # [ROWS, TILE]
        value = load_values(values_ptr, bases, slots, last, HEAD_DIM, DIMS, BLOCK_SIZE, False)
        running_max, running_sum, acc = fold(
            scores, value.to(query.dtype), running_max, running_sum, acc, PRECISION
        )
    for start in range(whole, last, TILE):
        slots = start + tl.arange(0, TILE)
        bases = find_bases(table_ptr, slots, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        key = load_keys(keys_ptr, bases, slots, HEAD_DIM, DIMS, BLOCK_SIZE).to(query.dtype)
        scores = multiply(query, key, None, PRECISION) * score_scale  # [ROWS, TILE]
        scores = tl.where(slots[None, :] <= positions[:, None], scores, float("-inf"))
        value = load_values(values_ptr, bases, slots, last, HEAD_DIM, DIMS, BLOCK_SIZE, True)
        running_max, running_sum, acc = fold(
            scores, value.to(query.dtype), running_max, running_sum, acc, PRECISION
        )
    write_rows(out_ptr + query_places, acc, running_sum, value_scale, inside)


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
