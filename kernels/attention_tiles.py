"""What the GPU's attention kernels have in common: how tiles of keys and values are read, and folded in.

A tile of scores is folded into a row's running maximum, sum and unnormalized output as online softmax does
(Milakov and Gimelshein, 2018), with powers of two: scores come multiplied by log2(e).

Owns the helpers of those kernels and the sizes of their tiles.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.pool_types import Capability

__all__ = [
    "HeadShape",
    "LaunchShape",
    "Scales",
    "find_bases",
    "fold_nothing",
    "fold_tile",
    "launch_of_partitions",
    "launch_of_spans",
    "open_tile",
    "rows_of_partitions",
    "rows_of_spans",
    "score_precision",
    "score_tile",
    "write_rows",
]


class Scales(NamedTuple):
    """What numbers are multiplied with. The last two are 1 but for pools of 8 bits."""

    scores: float
    keys: float = 1.0
    values: float = 1.0

    @property
    def powers(self) -> float:
        """What a score is multiplied with, so that a power of two is its weight."""
        return self.scores * self.keys * math.log2(math.e)


class HeadShape(NamedTuple):
    """What the sizes of tiles follow from."""

    group: int  # query heads of a key head
    head_dim: int
    block_size: int

    @classmethod
    def of(cls, query: torch.Tensor, keys: torch.Tensor) -> "HeadShape":
        """That of [num_tokens, num_heads, head_dim] and [num_blocks, num_kv_heads, head_dim, block_size]."""
        return cls(query.shape[1] // keys.shape[1], *keys.shape[2:])

    @property
    def dims(self) -> int:
        """A power of two, at least head_dim and what matrix instructions take."""
        return max(triton.next_power_of_2(self.head_dim), 16)


class LaunchShape(NamedTuple):
    """Sizes of one program."""

    rows: int  # query heads, of several tokens; a power of two
    tile: int  # tokens of the context at a time; a power of two
    num_warps: int
    num_stages: int


def rows_of_partitions(shape: HeadShape) -> int:
    """Of a program where short spans meet partitions."""
    return max(32, triton.next_power_of_2(shape.group))


def rows_of_spans(shape: HeadShape) -> int:
    """Of a program of a span's tile."""
    return max(128 if shape.dims <= 128 else 64, triton.next_power_of_2(shape.group))


def launch_of_partitions(shape: HeadShape, capability: Capability | None) -> LaunchShape:
    """Sizes with which three programs fit a multiprocessor."""
    tile = 64 if shape.dims <= 128 else 32
    return LaunchShape(rows_of_partitions(shape), tile, 4, _num_stages(capability))


def launch_of_spans(shape: HeadShape, capability: Capability | None) -> LaunchShape:
    """Sizes with which nothing spills; before Hopper queries lie in registers, so keys come by fewer."""
    is_wide = shape.dims > 128 or (capability is not None and capability < (9, 0))
    return LaunchShape(rows_of_spans(shape), 32 if is_wide else 64, 8, _num_stages(capability))


def _num_stages(capability: Capability | None) -> int:
    return 2 if capability is None or capability.is_amd else 3


def score_precision(dtype: torch.dtype) -> str:
    """Of products of this type: "ieee" has float32 multiplied in full, and "tf32" leaves 16 bits as they are,
    whose products are exact anyway. Triton's interpreter multiplies bfloat16 only as float32.
    """
    return "ieee" if dtype == torch.float32 or triton.knobs.runtime.interpret else "tf32"


@triton.jit
def multiply(first, second, acc, PRECISION: tl.constexpr):
    """acc and a product of matrices, in float32."""
    if PRECISION == "ieee":
        first, second = first.to(tl.float32), second.to(tl.float32)
    return tl.dot(first, second, acc, input_precision=PRECISION)


@triton.jit
def find_bases(
    table_ptr,  # the sequence's first block
    slots,  # [TILE] places in its context, from a multiple of TILE
    num_slots,  # that are written
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Where the blocks of some slots begin in a pool, in elements: [TILE] int64. Blocks without a slot that
    is written are taken to be block 0, so that nothing is read but what is there.
    """
    is_written = slots // BLOCK_SIZE * BLOCK_SIZE < num_slots
    blocks = tl.load(table_ptr + slots // BLOCK_SIZE, mask=is_written, other=0).to(tl.int64)
    return (blocks * KV_HEADS + kv_head) * (HEAD_DIM * BLOCK_SIZE)


@triton.jit
def load_keys(
    keys_ptr,
    bases,  # [TILE]
    slots,  # [TILE]
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """[DIMS, TILE], whole blocks, so that a load takes 16 bytes. Slots that are not written may be NaN."""
    dims = tl.arange(0, DIMS)
    places = bases[None, :] + dims[:, None] * BLOCK_SIZE + (slots % BLOCK_SIZE)[None, :]
    places = tl.max_contiguous(tl.multiple_of(places, [1, 16]), [1, 16])  # a block has 16 slots or more
    if DIMS == HEAD_DIM:
        return tl.load(keys_ptr + places)
    return tl.load(keys_ptr + places, mask=(dims < HEAD_DIM)[:, None], other=0.0)


@triton.jit
def load_values(
    values_ptr,
    bases,  # [TILE]
    slots,  # [TILE]
    num_slots,  # that are written; None if all of these are
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """[TILE, DIMS]. Slots that are not written are 0, since even NaN times no weight is NaN."""
    dims = tl.arange(0, DIMS)
    places = bases[:, None] + (slots % BLOCK_SIZE)[:, None] * HEAD_DIM + dims[None, :]
    if HEAD_DIM % 16 == 0:
        places = tl.max_contiguous(tl.multiple_of(places, [1, 16]), [1, 16])
    inside = (dims < HEAD_DIM)[None, :]
    if num_slots is not None:
        return tl.load(values_ptr + places, mask=(slots < num_slots)[:, None] & inside, other=0.0)
    if DIMS == HEAD_DIM:
        return tl.load(values_ptr + places)
    return tl.load(values_ptr + places, mask=inside, other=0.0)


@triton.jit
def open_tile(
    query_ptr,
    tables_ptr,
    contexts_ptr,
    starts_ptr,
    first_tokens_ptr,
    sequence,  # int64
    max_blocks,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
):
    """What a program of a tile begins with: where its sequence's blocks are listed; queries, where they lie,
    in elements, and which numbers there are, [ROWS, DIMS] each; the rows' positions, [ROWS], and that of the
    first; how many tokens of the context some row sees. Rows go token by token, heads beside each other.
    """
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    first = tl.load(first_tokens_ptr + tl.program_id(1))
    end, context = tl.load(starts_ptr + sequence + 1), tl.load(contexts_ptr + sequence)
    tokens = first + rows // GROUP
    heads = tokens.to(tl.int64) * (KV_HEADS * GROUP) + tl.program_id(0) * GROUP + rows % GROUP
    places = heads[:, None] * HEAD_DIM + dims[None, :]
    exists = (rows < ROWS // GROUP * GROUP) & (tokens < end)  # a tile may have rows left over
    inside = exists[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(query_ptr + places, mask=inside, other=0.0)
    before = context - end  # a token's position less its place in the step
    last = tl.minimum(before + first + ROWS // GROUP, context)
    return tables_ptr + sequence * max_blocks, query, places, inside, before + tokens, before + first, last


@triton.jit
def score_tile(
    query,  # [ROWS, DIMS]
    pool,  # pointers to keys, to values and to the sequence's first block; key head
    slots,  # [TILE] places in its context, from a multiple of TILE
    num_slots,  # that are written
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    """Each row's products with a tile of keys, [ROWS, TILE] float32, and where the tile's blocks begin."""
    keys_ptr, _, table_ptr, kv_head = pool
    bases = find_bases(table_ptr, slots, num_slots, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    key = load_keys(keys_ptr, bases, slots, HEAD_DIM, query.shape[1], BLOCK_SIZE).to(query.dtype)
    return multiply(query, key, None, PRECISION), bases


@triton.jit
def fold_nothing(ROWS: tl.constexpr, DIMS: tl.constexpr):
    """What tiles are folded into: maxima, sums and unnormalized outputs of rows that have seen nothing."""
    sums = tl.zeros((ROWS,), tl.float32)
    return tl.full((ROWS,), float("-inf"), tl.float32), sums, tl.zeros((ROWS, DIMS), tl.float32)


@triton.jit
def fold_tile(
    scores,  # [ROWS, TILE] float32, in powers of two; -inf where a row does not see
    folded,  # running maxima and sums, [ROWS] float32 each, and outputs, [ROWS, DIMS] float32
    query,  # whose type values take
    pool,
    bases,  # [TILE]
    slots,  # [TILE]
    num_slots,  # that are written; None if all of these are
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The three with a tile more. Weights are rounded to the type of values before they meet them."""
    running_max, running_sum, acc = folded
    value = load_values(pool[1], bases, slots, num_slots, HEAD_DIM, query.shape[1], BLOCK_SIZE)
    value = value.to(query.dtype)
    new_max = tl.maximum(running_max, tl.max(scores, axis=1))
    anchor = tl.where(new_max == float("-inf"), 0.0, new_max)  # a row that has seen nothing stays at 0
    shrink = tl.exp2(running_max - anchor)
    weights = tl.exp2(scores - anchor[:, None])
    running_sum = running_sum * shrink + tl.sum(weights, axis=1)
    acc = multiply(weights.to(value.dtype), value, acc * shrink[:, None], PRECISION)
    return new_max, running_sum, acc


@triton.jit
def write_rows(out_ptrs, folded, value_scale, inside):
    """Each row's output divided by its sum of weights. One that saw nothing becomes zeros."""
    _, running_sum, acc = folded
    divisor = tl.where(running_sum == 0.0, 1.0, running_sum)
    out = acc * (value_scale / divisor)[:, None]
    tl.store(out_ptrs, out.to(out_ptrs.dtype.element_ty), mask=inside)
