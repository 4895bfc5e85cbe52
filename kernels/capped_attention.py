"""Causal attention of ragged spans with scores that are capped.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j <= position(t), where

    weight = softmax(cap * tanh(scale * query[t, h] . key[j, h // group] / cap))

Spans may be of any length, decoding ones too.
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

__all__ = ["attend_capped", "attend_capped_reference"]


def attend_capped(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
    *,
    cap: float,  # that no score's size reaches
) -> None:
    """One program a tile and key head; blocks hold a power of two of tokens, from 16 on."""
    assert cap > 0, "scores are divided by it"
    for tensor in (query, keys, values, tiles.block_tables, out):
        assert tensor.is_contiguous(), "programs count elements from the first"
    shape, num_kv_heads = HeadShape.of(query, keys), keys.shape[1]
    assert shape.block_size % 16 == 0, "16 slots of a block are read at once"
    launch = launch_of_spans(shape, find_capability(query.device))
    _capped_attention_kernel[(num_kv_heads, len(tiles.sequences))](
        query,
        keys,
        values,
        tiles.block_tables,
        tiles.context_lens,
        tiles.cu_seqlens_q,
        tiles.sequences,
        tiles.first_tokens,
        out,
        2 * scales.powers / cap,
        cap,
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


@triton.jit
def _cap_scores(doubled, cap):
    """cap * tanh, as powers of two. Where a power would overflow, tanh is 1 in float32 long since."""
    log2_e: tl.constexpr = 1.4426950408889634
    power = tl.exp2(tl.minimum(doubled, 100.0, propagate_nan=tl.PropagateNan.ALL))
    return (1.0 - 2.0 / (power + 1.0)) * (cap * log2_e)


@triton.jit(do_not_specialize=["max_blocks"])
def _capped_attention_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    contexts_ptr,
    starts_ptr,
    sequences_ptr,
    first_tokens_ptr,
    out_ptr,
    score_scale,  # twice what tanh is taken of, as a power of two
    cap,
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
        scores = _cap_scores(multiply(query, key, None, PRECISION) * score_scale, cap)
        value = load_values(values_ptr, bases, slots, last, HEAD_DIM, DIMS, BLOCK_SIZE, False)
        running_max, running_sum, acc = fold(
            scores, value.to(query.dtype), running_max, running_sum, acc, PRECISION
        )
    for start in range(whole, last, TILE):
        slots = start + tl.arange(0, TILE)
        bases = find_bases(table_ptr, slots, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        key = load_keys(keys_ptr, bases, slots, HEAD_DIM, DIMS, BLOCK_SIZE).to(query.dtype)
        scores = _cap_scores(multiply(query, key, None, PRECISION) * score_scale, cap)
        scores = tl.where(slots[None, :] <= positions[:, None], scores, float("-inf"))
        value = load_values(values_ptr, bases, slots, last, HEAD_DIM, DIMS, BLOCK_SIZE, True)
        running_max, running_sum, acc = fold(
            scores, value.to(query.dtype), running_max, running_sum, acc, PRECISION
        )
    write_rows(out_ptr + query_places, acc, running_sum, value_scale, inside)


def attend_capped_reference(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
    *,
    cap: float,  # that no score's size reaches
) -> None:
    """The same in plain torch: span by span, a row of weights each."""
    for span in read_spans(query, keys, values, tiles, scales):
        capped = span._replace(scores=cap * (span.scores / cap).tanh())
        out[span.tokens] = weigh(capped, span.distances < 0).to(out.dtype)
