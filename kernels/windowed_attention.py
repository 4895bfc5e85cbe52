"""Causal attention of ragged spans that sees a window of tokens and no more.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j with

    position(t) - window < j <= position(t),  weight = softmax(scale * query[t, h] . key[j, h // group])

Tiles of keys that lie before every row's window are not read, so a row's work is bounded by the window
however long its context is. Spans may be of any length, decoding ones too.
"""

import torch
import triton
import triton.language as tl

from kernels.attention_tiles import Scales, fold_nothing, fold_tile, open_tile, score_tile, write_rows
from kernels.attention_work import QueryTiles
from kernels.plain_attention import read_spans, weigh
from kernels.span_attention import launch_tiles

__all__ = ["attend_window", "attend_window_reference"]


def attend_window(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
    *,
    window: int,  # tokens that a token sees, itself among them
) -> None:
    """One program a tile and key head; blocks hold a power of two of tokens, from 16 on."""
    assert window > 0, "a token sees itself"
    numbers = scales.powers, scales.values, window
    launch_tiles(_windowed_attention_kernel, query, keys, values, tiles, out, numbers)


@triton.jit
def _sees(slots, positions, window):
    """[ROWS, TILE], whether a row sees a slot."""
    distances = positions[:, None] - slots[None, :]
    return (distances >= 0) & (distances < window)


@triton.jit(do_not_specialize=["max_blocks", "window"])
def _windowed_attention_kernel(
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
    window,
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
    # Rows see all of the tiles from `inner` to `outer`; `lowest` is the first tile that some row sees.
    lowest = tl.maximum(position + 1 - window, 0) // TILE * TILE
    inner = tl.maximum(tl.cdiv(last - window, TILE) * TILE, lowest)
    outer = tl.maximum(tl.maximum(position + 1, 0) // TILE * TILE, inner)
    folded = fold_nothing(ROWS, DIMS)
    for start in range(lowest, tl.minimum(inner, last), TILE):
        slots = start + tl.arange(0, TILE)
        scores, bases = score_tile(query, pool, slots, last, KV_HEADS, HEAD_DIM, BLOCK_SIZE, PRECISION)
        scores *= score_scale
        scores = tl.where(_sees(slots, positions, window), scores, float("-inf"))
        folded = fold_tile(scores, folded, query, pool, bases, slots, last, HEAD_DIM, BLOCK_SIZE, PRECISION)
    for start in range(inner, outer, TILE):
        slots = start + tl.arange(0, TILE)
        scores, bases = score_tile(query, pool, slots, last, KV_HEADS, HEAD_DIM, BLOCK_SIZE, PRECISION)
        scores *= score_scale
        folded = fold_tile(scores, folded, query, pool, bases, slots, None, HEAD_DIM, BLOCK_SIZE, PRECISION)
    for start in range(outer, last, TILE):
        slots = start + tl.arange(0, TILE)
        scores, bases = score_tile(query, pool, slots, last, KV_HEADS, HEAD_DIM, BLOCK_SIZE, PRECISION)
        scores *= score_scale
        scores = tl.where(_sees(slots, positions, window), scores, float("-inf"))
        folded = fold_tile(scores, folded, query, pool, bases, slots, last, HEAD_DIM, BLOCK_SIZE, PRECISION)
    write_rows(out_ptr + places, folded, value_scale, inside)


def attend_window_reference(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
    out: torch.Tensor,  # as query, written for the tokens of the tiles
    *,
    window: int,  # tokens that a token sees, itself among them
) -> None:
    """The same in plain torch: span by span, a row of weights each."""
    for span in read_spans(query, keys, values, tiles, scales):
        out[span.tokens] = weigh(span, (span.distances < 0) | (span.distances >= window)).to(out.dtype)
