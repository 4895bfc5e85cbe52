"""What a step's attention has to do, found once a step and taken by every layer.

Short spans, of decoding and of verifying proposals, are cut by partitions (see `kernels.partitions`): tokens
that see the same keys and values of a partition form groups, and a group reads them once. Long spans are cut
into tiles of query tokens.

Everything is found on the device and nothing waits for it: sizes follow from the shapes alone, so some places
are for nobody. A span has a token or more; tokens past the last span are padding, and are in no list.
"""

from dataclasses import dataclass

import torch

from kernels.attention_tiles import HeadShape, rows_of_partitions, rows_of_spans
from kernels.partitions import PARTITION_TOKENS

__all__ = ["SHORT_SPAN", "AttentionWork", "QueryTiles", "ShortSpans", "plan_attention", "plan_tiles"]

SHORT_SPAN = 8  # tokens


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """Spans cut into tiles of query tokens, those with the most context first."""

    block_tables: torch.Tensor  # [num_sequences, max_blocks] int32
    context_lens: torch.Tensor  # [num_sequences] int32
    cu_seqlens_q: torch.Tensor  # [num_sequences + 1] int32
    sequences: torch.Tensor  # [num_tiles] int32, each tile's; -1 is nobody
    first_tokens: torch.Tensor  # [num_tiles] int32, of the step


@dataclass(frozen=True, slots=True)
class ShortSpans:
    """Tokens of short spans in slots, and which of them meet a partition together.

    A row of `members` holds slots, those that read a partition together side by side. A group begins wherever
    `counts` is not 0, and has so many members. What lies at one place of every row is one walk.
    """

    block_tables: torch.Tensor  # [num_sequences, max_blocks] int32
    tokens: torch.Tensor  # [num_slots] int32, of the step; -1 is nobody
    sequences: torch.Tensor  # [num_slots] int32
    visible: torch.Tensor  # [num_slots] int32, tokens of the context that each one sees
    members: torch.Tensor  # [num_partitions, num_slots] int32
    counts: torch.Tensor  # [num_partitions, num_slots] int32
    walks: torch.Tensor  # [num_slots] int32, partitions until the last group of each place


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Of one step, for heads of one shape."""

    short: ShortSpans
    long: QueryTiles


def plan_attention(
    block_tables: torch.Tensor,  # [num_sequences, max_blocks] int32
    context_lens: torch.Tensor,  # [num_sequences] int32
    cu_seqlens_q: torch.Tensor,  # [num_sequences + 1] int32
    leaders: torch.Tensor,  # [num_sequences, num_whole_partitions] int32
    num_tokens: int,
    shape: HeadShape,
) -> AttentionWork:
    """Tokens may be more than the spans have. A token that a span puts before its context sees nothing."""
    tokens = torch.arange(num_tokens, dtype=torch.int32, device=cu_seqlens_q.device)
    ends, last = cu_seqlens_q[1:], len(context_lens) - 1
    sequences = torch.searchsorted(ends, tokens, right=True, out_int32=True).clamp(max=last)
    visible = ((context_lens - ends)[sequences] + tokens + 1).clamp(min=0)
    is_short = (cu_seqlens_q.diff()[sequences] <= SHORT_SPAN) & (tokens < ends[last])
    num_slots = min(num_tokens, SHORT_SPAN * len(context_lens))
    slots = (~is_short).int().argsort(stable=True)[:num_slots]
    is_taken = is_short[slots]
    seen = torch.where(is_taken, visible[slots], 0)
    num_partitions = -(-block_tables.shape[1] * shape.block_size // PARTITION_TOKENS)
    members, counts = _find_groups(leaders, sequences[slots], seen, num_partitions, shape)
    reached = torch.arange(1, num_partitions + 1, dtype=torch.int32, device=counts.device)[:, None]
    short = ShortSpans(
        block_tables,
        torch.where(is_taken, slots, -1).int(),
        sequences[slots],
        seen,
        members,
        counts,
        torch.where(counts > 0, reached, 0).amax(dim=0),
    )
    # A long span takes SHORT_SPAN tokens more than the one that every span has.
    max_long = max(num_tokens - len(context_lens), 0) // SHORT_SPAN
    rows = _tile_tokens(shape)
    max_tiles = (num_tokens + max_long * (rows - 1)) // rows if max_long else 0
    tiles = _cut_spans(cu_seqlens_q, SHORT_SPAN + 1, rows, max_tiles)
    return AttentionWork(short, QueryTiles(block_tables, context_lens, cu_seqlens_q, *tiles))


def plan_tiles(
    block_tables: torch.Tensor,  # [num_sequences, max_blocks] int32
    context_lens: torch.Tensor,  # [num_sequences] int32
    cu_seqlens_q: torch.Tensor,  # [num_sequences + 1] int32
    num_tokens: int,
    shape: HeadShape,
) -> QueryTiles:
    """Every span in tiles, short ones too, as layers with a window or a cap take them."""
    rows = _tile_tokens(shape)
    max_tiles = (num_tokens + len(context_lens) * (rows - 1)) // rows
    tiles = _cut_spans(cu_seqlens_q, 1, rows, max_tiles)
    return QueryTiles(block_tables, context_lens, cu_seqlens_q, *tiles)


def _tile_tokens(shape: HeadShape) -> int:
    return rows_of_spans(shape) // shape.group


def _find_groups(
    leaders: torch.Tensor,  # [num_sequences, num_whole_partitions] int32
    sequences: torch.Tensor,  # [num_slots] int32
    visible: torch.Tensor,  # [num_slots] int32
    num_partitions: int,
    shape: HeadShape,
) -> tuple[torch.Tensor, torch.Tensor]:  # [num_partitions, num_slots] int32 each: members and counts
    """Slots of one leader that see the whole of a partition meet it together; so do those of one sequence
    that see a part of it. A group has as many members as a program has room for.
    """
    num_sequences, num_whole = len(leaders), min(leaders.shape[1], num_partitions)
    nobody = 2 * num_sequences
    starts = torch.arange(num_partitions, device=leaders.device)[:, None] * PARTITION_TOKENS
    heads = sequences.expand(num_partitions, -1).clone()
    heads[:num_whole] = leaders[sequences, :num_whole].T
    keys = torch.where(visible > starts, sequences + num_sequences, nobody)
    keys = torch.where(visible >= starts + PARTITION_TOKENS, heads, keys)
    ordered, members = keys.sort(dim=1, stable=True)
    firsts, ends = (torch.searchsorted(ordered, ordered, right=right) for right in (False, True))
    places, room = (
        torch.arange(len(sequences), device=leaders.device),
        rows_of_partitions(shape) // shape.group,
    )
    is_first = (ordered < nobody) & ((places - firsts) % room == 0)
    counts = torch.where(is_first, (ends - places).clamp(max=room), 0)
    return members.int(), counts.int()


def _cut_spans(
    cu_seqlens_q: torch.Tensor,  # [num_sequences + 1] int32
    min_tokens: int,  # of a span that is cut
    rows: int,  # tokens of a tile
    max_tiles: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # [max_tiles] int32 each: sequences and first tokens
    """The last tiles of a span come first: they see the most."""
    lengths = cu_seqlens_q.diff()
    num_tiles = torch.where(lengths >= min_tokens, (lengths + rows - 1) // rows, 0)
    ends = num_tiles.cumsum(0)
    tiles = torch.arange(max_tiles - 1, -1, -1, device=cu_seqlens_q.device)
    sequences = torch.searchsorted(ends, tiles, right=True)
    is_taken, sequences = sequences < len(lengths), sequences.clamp(max=len(lengths) - 1)
    offsets = tiles - (ends - num_tiles)[sequences]
    first_tokens = cu_seqlens_q[sequences] + offsets * rows
    return torch.where(is_taken, sequences, -1).int(), first_tokens.int()
