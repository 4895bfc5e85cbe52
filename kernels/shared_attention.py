"""Attention over what several sequences share: each partition once, for all of them together.

For every token that sees a whole partition beside others of one leader (see `kernels.partitions`), and every
query head: the largest score m, the sum of exp(score - m), and the sum of exp(score - m) * value. Joined by
their maxima, these give what softmax over the whole context gives (Milakov and Gimelshein, 2018).

Owns the grouping of tokens, on the device, and its kernel. The joining is `kernels.paged_attention`'s.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.partitions import PARTITION_TOKENS

__all__ = ["SharedSums", "attend_shared"]

_MAX_PLACES = 1 << 14  # tokens x partitions; with 32 heads of 128 dimensions their sums take 268 MB
_ROWS = 32  # query heads, of several tokens, that meet a partition in one program


class SharedSums(NamedTuple):
    """What is done. Where it is not, the sums hold anything."""

    is_done: torch.Tensor  # [num_partitions, num_tokens] bool
    maxima: torch.Tensor  # [num_partitions, num_tokens, num_heads] float32
    sums: torch.Tensor  # [num_partitions, num_tokens, num_heads] float32
    outs: torch.Tensor  # [num_partitions, num_tokens, num_heads, head_dim] float32


class _Groups(NamedTuple):
    """Which tokens meet which partitions together. All of it stays on the device: nothing waits for a size.

    A row of `order` holds the step's tokens, those that share the partition side by side. A program begins
    wherever `counts` is not 0, and takes so many of them, as far as it has room.
    """

    order: torch.Tensor  # [num_partitions, num_tokens] int32
    counts: torch.Tensor  # [num_partitions, num_tokens] int32
    has_company: torch.Tensor  # [num_partitions, num_tokens] bool, by token


def attend_shared(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    block_tables: torch.Tensor,  # [num_sequences, max_blocks] int32
    sequences: torch.Tensor,  # [num_tokens] int32, each token's
    visible: torch.Tensor,  # [num_tokens] int32, tokens that each one sees
    leaders: torch.Tensor,  # [num_sequences, num_partitions] int32
    scale: float,
) -> SharedSums:
    """One program some tokens, partition and key head."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, block_size = keys.shape[1], keys.shape[3]
    # Long chunks of prompts are company enough for themselves, and too many to keep sums of.
    num_partitions = leaders.shape[1] if num_tokens * leaders.shape[1] <= _MAX_PLACES else 0
    group = triton.next_power_of_2(num_heads // num_kv_heads)
    num_members = max(_ROWS // group, 1)
    size = (num_partitions, num_tokens, num_heads)
    maxima, sums = (query.new_empty(size, dtype=torch.float32) for _ in range(2))
    outs = query.new_empty((*size, head_dim), dtype=torch.float32)
    if num_partitions == 0:
        return SharedSums(query.new_empty((0, num_tokens), dtype=torch.bool), maxima, sums, outs)
    groups = _find_groups(leaders[:, :num_partitions], sequences, visible, num_members)
    _shared_partition_kernel[(num_tokens, num_partitions, num_kv_heads)](
        query,
        keys,
        values,
        block_tables,
        sequences,
        groups.order,
        groups.counts,
        maxima,
        sums,
        outs,
        scale,
        num_tokens,
        num_kv_heads,
        num_heads // num_kv_heads,
        head_dim,
        block_tables.shape[1],
        BLOCK_SIZE=block_size,
        GROUP=group,
        MEMBERS=num_members,
        DIMS=max(triton.next_power_of_2(head_dim), 16),
        PARTITION=PARTITION_TOKENS,
        TILE=32,
        # A number of 16 bits fits a tensor core's 19, so its products are exact.
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
    )
    return SharedSums(groups.has_company, maxima, sums, outs)


def _find_groups(
    leaders: torch.Tensor,  # [num_sequences, num_partitions] int32
    sequences: torch.Tensor,  # [num_tokens] int32
    visible: torch.Tensor,  # [num_tokens] int32
    num_members: int,  # of one program, at most
) -> _Groups:
    """Tokens of one leader that see the whole of a partition, wherever there are two or more."""
    (num_sequences, num_partitions), num_tokens = leaders.shape, len(sequences)
    tokens = torch.arange(num_tokens, device=leaders.device)
    ends = torch.arange(1, num_partitions + 1, device=leaders.device) * PARTITION_TOKENS
    keys = torch.where(visible >= ends[:, None], leaders[sequences].T, num_sequences + tokens)
    ordered, order = keys.sort(dim=1, stable=True)
    firsts, ends = (torch.searchsorted(ordered, ordered, right=right) for right in (False, True))
    has_company = ends - firsts > 1
    is_first = has_company & ((tokens - firsts) % num_members == 0)
    counts = torch.where(is_first, ends - tokens, 0)
    is_done = torch.empty_like(has_company).scatter_(1, order, has_company)
    return _Groups(order.int(), counts.int(), is_done)


@triton.jit
def _shared_partition_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    sequences_ptr,
    order_ptr,
    counts_ptr,
    maxima_ptr,
    sums_ptr,
    outs_ptr,
    scale,
    num_tokens,
    num_kv_heads,
    group,
    head_dim,
    max_blocks,
    BLOCK_SIZE: tl.constexpr,  # a power of two
    GROUP: tl.constexpr,  # a power of two, at least group
    MEMBERS: tl.constexpr,  # tokens of one program; GROUP * MEMBERS is 16 or more
    DIMS: tl.constexpr,  # a power of two, at least head_dim and 16
    PARTITION: tl.constexpr,
    TILE: tl.constexpr,  # tokens at a time, which divide a partition
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    """A partition's maxima, sums and unnormalized outputs, for tokens that all see the whole of it."""
    partition, kv_head = tl.program_id(1).to(tl.int64), tl.program_id(2)
    place = partition * num_tokens + tl.program_id(0)
    count = tl.load(counts_ptr + place)
    if count == 0:
        return
    rows, dims, places = tl.arange(0, MEMBERS * GROUP), tl.arange(0, DIMS), tl.arange(0, TILE)
    member, head = rows // GROUP, kv_head * group + rows % GROUP
    inside = (member < count) & (rows % GROUP < group)
    tokens = tl.load(order_ptr + place + member, mask=inside, other=0).to(tl.int64)
    has_dim = dims < head_dim
    query_places = (tokens * num_kv_heads * group + head)[:, None] * head_dim + dims[None, :]
    query = tl.load(query_ptr + query_places, mask=inside[:, None] & has_dim[None, :], other=0.0).to(
        tl.float32
    )
    leader = tl.load(sequences_ptr + tl.load(order_ptr + place)).to(tl.int64)
    running_max = tl.full((MEMBERS * GROUP,), float("-inf"), tl.float32)
    running_sum = tl.zeros((MEMBERS * GROUP,), tl.float32)
    acc = tl.zeros((MEMBERS * GROUP, DIMS), tl.float32)
    for start in range(0, PARTITION, TILE):
        slots = partition * PARTITION + start + places
        blocks = tl.load(tables_ptr + leader * max_blocks + slots // BLOCK_SIZE).to(tl.int64)
        bases = (blocks * num_kv_heads + kv_head) * head_dim * BLOCK_SIZE
        key_places = bases[None, :] + dims[:, None] * BLOCK_SIZE + (slots % BLOCK_SIZE)[None, :]
        key = tl.load(keys_ptr + key_places, mask=has_dim[:, None], other=0.0).to(tl.float32)  # [DIMS, TILE]
        value_places = bases[:, None] + (slots % BLOCK_SIZE)[:, None] * head_dim + dims[None, :]
        value = tl.load(values_ptr + value_places, mask=has_dim[None, :], other=0.0).to(
            tl.float32
        )  # [TILE, DIMS]
        scores = tl.dot(query, key, input_precision=PRECISION) * scale
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        shrink = tl.exp(running_max - new_max)
        weights = tl.exp(scores - new_max[:, None])
        running_sum = running_sum * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weights, value, input_precision=PRECISION)
        running_max = new_max
    out_rows = (partition * num_tokens + tokens) * num_kv_heads * group + head
    tl.store(maxima_ptr + out_rows, running_max, mask=inside)
    tl.store(sums_ptr + out_rows, running_sum, mask=inside)
    out_places = out_rows[:, None] * head_dim + dims[None, :]
    tl.store(outs_ptr + out_places, acc, mask=inside[:, None] & has_dim[None, :])
