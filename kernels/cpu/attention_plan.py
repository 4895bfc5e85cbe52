"""How the CPU's attention is cut into tasks: which query tokens meet which segment of a context together.

A tile is at most TILE_TOKENS query tokens of one span. A part is a tile and one segment of the context that
it sees: the unit whose maximum, sum and output are kept until a tile's parts are joined. A task is the parts
that are computed together since they read the very same keys and values: one part, or those of several tiles
whose sequences hold the segment in the same blocks and whose tokens all see the whole of it.

A task's members are its query tokens, part by part; each has the rows of a key head's group.

Owns these four tables. A part comes to the same, bit for bit, whichever task it is in, so the cut may go by
what is fast.
"""

import numba
import numpy as np

from kernels.partitions import PARTITION_TOKENS

__all__ = ["TASKS_PER_WORKER", "TILE_TOKENS", "plan"]

TILE_TOKENS = 32  # with a group of 3 heads, rows for three pairs of tile registers
MAX_TASK_ROWS = 96
TASKS_PER_WORKER = 4  # at least, where there is work for so many: nobody waits long for the last one

TILE = np.dtype(
    [
        ("sequence", np.int64),
        ("first_token", np.int64),
        ("num_tokens", np.int64),
        ("position", np.int64),  # of the first token
        ("first_part", np.int64),  # its parts follow, segment by segment
        ("num_parts", np.int64),
    ]
)
PART = np.dtype(
    [
        ("tile", np.int64),
        ("next_part", np.int64),  # another one of its task; -1: there is none
        ("row", np.int64),  # where its rows of key head 0 begin
        ("row_stride", np.int64),  # from there to its rows of the next key head
    ]
)
TASK = np.dtype(
    [
        ("first_part", np.int64),
        ("last_part", np.int64),
        ("segment", np.int64),
        ("num_rows", np.int64),  # of all its parts, for one key head
        ("row", np.int64),  # where its rows of key head 0 begin; those of the next key head follow
        ("first_member", np.int64),  # its members follow
        ("sequence", np.int64),  # one that holds the segment
        ("num_seen", np.int64),  # the segment's tokens that any row sees
    ]
)
MEMBER = np.dtype(
    [
        ("token", np.int64),
        ("num_visible", np.int64),  # the segment's tokens that it sees; none or less if it stands before
    ]
)


@numba.njit
def plan(context_lens, cu_seqlens_q, leaders, group, num_kv_heads, num_workers):
    """Tiles, parts, tasks, members, and how many rows the parts have together.

    A row is one query token and one query head of a key head's `group`. A task's rows lie side by side, for
    one key head after the other.
    """
    tiles = _cut_tiles(context_lens, cu_seqlens_q)
    num_members = (tiles.num_parts * tiles.num_tokens).sum()
    num_rows = num_members * group * num_kv_heads
    max_rows = min(num_rows // (num_workers * TASKS_PER_WORKER), MAX_TASK_ROWS)
    parts, tasks = _group_parts(tiles, leaders, group, max_rows)
    members = np.empty(num_members, MEMBER)
    first_member = 0
    for index in range(len(tasks)):
        first_member = _place_task(tasks[index], first_member, tiles, parts, members, group, num_kv_heads)
    return tiles, parts, tasks, members, num_rows


@numba.njit
def _place_task(task, first_member, tiles, parts, members, group, num_kv_heads):
    """Give the task its rows and members, the first one here. Returns where the next task's begin."""
    start = task.segment * PARTITION_TOKENS
    task.first_member, task.row = first_member, first_member * group * num_kv_heads
    first = tiles[parts[task.first_part].tile]
    task.sequence = first.sequence
    task.num_seen = min(first.position + first.num_tokens - start, PARTITION_TOKENS)
    member, place = first_member, task.first_part
    while place >= 0:
        part = parts[place]
        part.row, part.row_stride = task.row + (member - first_member) * group, task.num_rows
        tile = tiles[part.tile]
        for token in range(tile.num_tokens):
            members[member].token = tile.first_token + token
            members[member].num_visible = min(tile.position + token + 1 - start, task.num_seen)
            member += 1
        place = part.next_part
    return member


@numba.njit
def _cut_tiles(context_lens, cu_seqlens_q):
    num_tiles = 0
    for sequence in range(len(context_lens)):
        num_tiles += -(-(cu_seqlens_q[sequence + 1] - cu_seqlens_q[sequence]) // TILE_TOKENS)
    tiles = np.empty(num_tiles, TILE)
    place, num_parts = 0, 0
    for sequence in range(len(context_lens)):
        start, end = cu_seqlens_q[sequence], cu_seqlens_q[sequence + 1]
        for token in range(start, end, TILE_TOKENS):
            tile = tiles[place]
            tile.sequence = sequence
            tile.first_token = token
            tile.num_tokens = min(TILE_TOKENS, end - token)
            tile.position = context_lens[sequence] - end + token
            tile.first_part = num_parts
            tile.num_parts = -(-(tile.position + tile.num_tokens) // PARTITION_TOKENS)
            num_parts += tile.num_parts
            place += 1
    return tiles


@numba.njit
def _group_parts(tiles, leaders, group, max_rows):
    """Parts of one leader's segment in one task, up to `max_rows`; every other part in its own."""
    num_parts = tiles[-1].first_part + tiles[-1].num_parts
    parts, tasks = np.empty(num_parts, PART), np.empty(num_parts, TASK)
    num_tasks = 0
    open_tasks = np.empty(len(leaders), np.int64)  # of each leader: the task that may take another part
    for segment in range(tiles.num_parts.max()):
        open_tasks[:] = -1
        for index in range(len(tiles)):
            tile = tiles[index]
            if segment >= tile.num_parts:
                continue
            place = tile.first_part + segment
            num_rows = tile.num_tokens * group
            parts[place].tile, parts[place].next_part = index, -1
            sees_all = (segment + 1) * PARTITION_TOKENS <= tile.position + 1
            is_shared = segment < leaders.shape[1] and sees_all
            leader = leaders[tile.sequence, segment] if is_shared else 0
            joined = open_tasks[leader] if is_shared else -1
            if joined >= 0 and tasks[joined].num_rows + num_rows <= max_rows:
                parts[tasks[joined].last_part].next_part = place
                tasks[joined].last_part = place
                tasks[joined].num_rows += num_rows
                continue
            task = tasks[num_tasks]
            task.first_part, task.last_part = place, place
            task.segment, task.num_rows = segment, num_rows
            if is_shared:
                open_tasks[leader] = num_tasks
            num_tasks += 1
    return parts, tasks[:num_tasks]
