"""Causal attention of ragged spans with scores that are capped.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j <= position(t), where

    weight = softmax(cap * tanh(scale * query[t, h] . key[j, h // group] / cap))

Spans may be of any length, decoding ones too.
"""

import torch
import triton
import triton.language as tl

from kernels.attention_tiles import Scales, fold_nothing, fold_tile, open_tile, score_tile, write_rows
from kernels.attention_work import QueryTiles
from kernels.plain_attention import read_spans, weigh
from kernels.span_attention import launch_tiles

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
    numbers = 2 * scales.powers / cap, scales.values, cap
    launch_tiles(_capped_attention_kernel, query, keys, values, tiles, out, numbers)


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
    max_blocks,
    score_scale,  # twice what tanh is taken of, as a power of two
    value_scale,
    cap,
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
        scores = _cap_scores(scores * score_scale, cap)
        folded = fold_tile(scores, folded, query, pool, bases, slots, None, HEAD_DIM, BLOCK_SIZE, PRECISION)
    for start in range(whole, last, TILE):
        slots = start + tl.arange(0, TILE)
        scores, bases = score_tile(query, pool, slots, last, KV_HEADS, HEAD_DIM, BLOCK_SIZE, PRECISION)
        scores = _cap_scores(scores * score_scale, cap)
        scores = tl.where(slots[None, :] <= positions[:, None], scores, float("-inf"))
        folded = fold_tile(scores, folded, query, pool, bases, slots, last, HEAD_DIM, BLOCK_SIZE, PRECISION)
    write_rows(out_ptr + places, folded, value_scale, inside)


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
