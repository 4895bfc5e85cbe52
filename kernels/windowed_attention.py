"""Causal attention of ragged spans that sees a window of tokens and no more.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j with

    position(t) - window < j <= position(t),  weight = softmax(scale * query[t, h] . key[j, h // group])

Tiles of keys that lie before every row's window are not read, so a row's work is bounded by the window
however long its context is. Spans may be of any length, decoding ones too.
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
    for tensor in (query, keys, values, tiles.block_tables, out):
        assert tensor.is_contiguous(), "programs count elements from the first"
    shape, num_kv_heads = HeadShape.of(query, keys), keys.shape[1]
    assert shape.block_size % 16 == 0, "16 slots of a block are read at once"
    launch = launch_of_spans(shape, find_capability(query.device))
    _windowed_attention_kernel[(num_kv_heads, len(tiles.sequences))](
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
        window,
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
    score_scale,
    value_scale,
    max_blocks,
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
    # Rows see all of the tiles from `inner` to `outer`; `lowest` is the first tile that some row sees.
    lowest = tl.maximum(before + first + 1 - window, 0) // TILE * TILE
    inner = tl.maximum(tl.cdiv(last - window, TILE) * TILE, lowest)
    outer = tl.maximum(tl.maximum(before + first + 1, 0) // TILE * TILE, inner)
    running_max = tl.full((ROWS,), float("-inf"), tl.float32)
    running_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DIMS), tl.float32)
    for start in range(lowest, tl.minimum(inner, last), TILE):
        slots = start + tl.arange(0, TILE)
        bases = find_bases(table_ptr, slots, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        key = load_keys(keys_ptr, bases, slots, HEAD_DIM, DIMS, BLOCK_SIZE).to(query.dtype)
        scores = multiply(query, key, None, PRECISION) * score_scale  # [ROWS, TILE]
        sees = _sees(slots, positions, window)
        scores = tl.where(sees, scores, float("-inf"))
        value = load_values(values_ptr, bases, slots, last, HEAD_DIM, DIMS, BLOCK_SIZE, True)
        running_max, running_sum, acc = fold(
            scores, value.to(query.dtype), running_max, running_sum, acc, PRECISION
        )
    for start in range(inner, outer, TILE):
        slots = start + tl.arange(0, TILE)
        bases = find_bases(table_ptr, slots, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        key = load_keys(keys_ptr, bases, slots, HEAD_DIM, DIMS, BLOCK_SIZE).to(query.dtype)
        scores = multiply(query, key, None, PRECISION) * score_scale  # [ROWS, TILE]
        value = load_values(values_ptr, bases, slots, last, HEAD_DIM, DIMS, BLOCK_SIZE, False)
        running_max, running_sum, acc = fold(
            scores, value.to(query.dtype), running_max, running_sum, acc, PRECISION
        )
    for start in range(outer, last, TILE):
        slots = start + tl.arange(0, TILE)
        bases = find_bases(table_ptr, slots, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        key = load_keys(keys_ptr, bases, slots, HEAD_DIM, DIMS, BLOCK_SIZE).to(query.dtype)
        scores = multiply(query, key, None, PRECISION) * score_scale  # [ROWS, TILE]
        sees = _sees(slots, positions, window)
        scores = tl.where(sees, scores, float("-inf"))
        value = load_values(values_ptr, bases, slots, last, HEAD_DIM, DIMS, BLOCK_SIZE, True)
        running_max, running_sum, acc = fold(
            scores, value.to(query.dtype), running_max, running_sum, acc, PRECISION
        )
    write_rows(out_ptr + query_places, acc, running_sum, value_scale, inside)


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
