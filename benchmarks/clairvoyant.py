"""What a cache of a size could find at best, if it knew the future.

Whatever is asked for again last goes first (Belady). A block is never asked for sooner than its predecessor,
so the choice falls on leaves of the tree by itself, and what is left always holds together.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

__all__ = ["NEVER", "clairvoyant", "next_uses"]

NEVER = 1 << 60


def next_uses(paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each block of each request: which request asks for it next; NEVER when none does."""
    upcoming: dict[int, int] = {}
    result = []
    for index in range(len(paths) - 1, -1, -1):
        result.append([upcoming.get(block, NEVER) for block in paths[index]])
        upcoming.update(dict.fromkeys(paths[index], index))
    result.reverse()
    return result


def clairvoyant(paths: Sequence[Sequence[int]], num_blocks: int) -> list[int]:
    """How many blocks each request finds at best. One longer than the cache is skipped, as in a replay."""
    cached: dict[int, int] = {}  # and who asks for it next
    heap: list[tuple[int, int, int]] = []  # -next use, -depth, block
    hits = []
    served = [path if len(path) <= num_blocks else () for path in paths]  # what is skipped uses nothing
    for path, uses in zip(served, next_uses(served), strict=True):
        num_found = sum(block in cached for block in path)
        hits.append(num_found)
        num_spare = num_blocks - len(cached) - (len(path) - num_found)
        # What this request holds has the soonest next use of all, this one, so it never goes here.
        while num_spare < 0:
            next_use, _, block = heappop(heap)
            if cached.get(block) == -next_use:
                del cached[block]
                num_spare += 1
        for depth, (block, use) in enumerate(zip(path, uses, strict=True)):
            cached[block] = use
            heappush(heap, (-use, -depth, block))
    return hits
