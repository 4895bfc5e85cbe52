"""Replays a trace through the cache's own tree, one request after the other, and without tensors.

Owns how a request's life is told to the tree, which blocks of a trace are the same, and which turn of its
conversation a request is; policies and traces come from outside.
"""

from collections.abc import Iterable, Sequence

from benchmarks.traces import Request
from prefix_cache.eviction import EvictionPolicy
from prefix_cache.tokens import TOKEN_BYTES, pack
from prefix_cache.tree import PrefixCache

__all__ = ["paths_of", "replay", "turns_of"]

# The tree leaves a request's last token to compute, so every request ends with one more that nobody computes.
_END = pack([-1])


def replay(requests: Iterable[Request], num_blocks: int, policy: EvictionPolicy) -> list[int]:
    """How many blocks each request finds in a cache of `num_blocks`. One longer than that is skipped."""
    cache = PrefixCache(num_blocks, block_size=1, policy=policy)
    hits = []
    for request in requests:
        length = request.num_blocks
        if length > num_blocks:
            hits.append(0)
            continue
        names = request.names
        lease = cache.acquire(b"", names + _END, max_new=length, num_required=length, now=request.time)
        assert lease is not None, "nobody else holds anything"
        hits.append(lease.num_matched)
        cache.commit(lease, names[lease.num_committed * TOKEN_BYTES :])
        cache.release(lease, request.time)
    return hits


def paths_of(requests: Iterable[Request]) -> list[list[int]]:
    """Each request's blocks as numbers that stand for a name and all names before it."""
    numbers: dict[tuple[int, int], int] = {}
    paths = []
    for request in requests:
        path: list[int] = []
        parent = -1
        for name in memoryview(request.names).cast("i"):
            parent = numbers.setdefault((parent, name), len(numbers))
            path.append(parent)
        paths.append(path)
    return paths


def turns_of(paths: Sequence[Sequence[int]]) -> list[int]:
    """Which turn of its conversation each request is, from 1 on.

    A request leaves a mark on its last whole block, the one before its last. A later request that runs
    through a mark is that conversation's next turn, and takes the mark away: what many begin with is soon
    unmarked.
    """
    marks: dict[int, int] = {}
    turns = []
    for path in paths:
        marked = next((block for block in reversed(path) if block in marks), None)
        turn = 1 if marked is None else marks.pop(marked) + 1
        turns.append(turn)
        if path:
            marks[path[-2] if len(path) > 1 else path[-1]] = turn
    return turns
