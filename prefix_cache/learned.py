"""Eviction by what past reuse says of a leaf, for as long as that finds more than recency does.

A leaf's value depends only on how often it was used and how long it has rested (see reuse.py), so leaves lie
in groups of one value each, and no leaf is drawn by lot. Time is in seconds: a person who reads an answer, or
a tool that runs, takes as long when others are busy. While little is known, and for a while after it has
found fewer blocks than the least recently used order would have, the policy uses that order.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import log2

from prefix_cache.eviction import EvictionQueue, Standing, is_evictable
from prefix_cache.history import Cohort, History, Recollection
from prefix_cache.node import Namespace, Node
from prefix_cache.reuse import BOUNDS, NUM_BUCKETS, ReuseRates, bucket_of
from prefix_cache.tokens import TOKEN_BYTES

__all__ = ["Learned"]

_MAX_USES = 4  # more says nothing more
_PERIOD = 100  # requests between two judgements
_MEMORY = 0.8  # what a judgement counts in the next one
_MARGIN = 0.003  # of the blocks asked for: how much fewer finds than recency's are too few
_SHORTEST_PAUSE, _LONGEST_PAUSE = 8, 256  # periods


class Learned:
    """Values leaves by their rate of reuse, times what it costs to compute them again."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_remembered: int | None = None,
        cost: Callable[[int], float] | None = None,
    ) -> None:
        """For a pool of `num_blocks`. `num_remembered` blocks of history, eight pools unless told.

        `cost` tells, of a position in tokens, what computing a block that ends there costs; without it all
        blocks cost the same. Where attention dominates, cost grows with position, and so does the worth of
        keeping deep blocks. Costs count to the nearest power of two.
        """
        self._rates = ReuseRates(_MAX_USES)
        num_remembered = 8 * num_blocks if num_remembered is None else num_remembered
        self.history = History(
            num_remembered,
            block_size,
            max_uses=_MAX_USES,
            on_cohort=self._rates.add,
            on_forget=self._stop_following,
        )
        # What recency alone would hold: a history that forgets as soon as the pool is full.
        self._recent = History(num_blocks, block_size)
        self._judgement = _Judgement()
        self._cost = cost
        self._block_bytes = block_size * TOKEN_BYTES
        self._num_noted = 0
        self.now = 0.0  # seconds, of the last request
        self.version = 0  # rises when values change

    @property
    def is_by_recency(self) -> bool:
        """Whether the least recently used leaf goes first just now."""
        return self._num_noted < _PERIOD or self._judgement.is_pausing

    def make_queue(self) -> EvictionQueue:
        """Groups of leaves of one value each."""
        return _GroupedQueue(self)

    def note_match(self, namespace: Namespace, tokens: bytes, path: Sequence[Node], now: float) -> int:
        """Learn from what is asked for, the last token left out: that is always computed.

        Answers how often the last of the tokens after the path was used, if most of them are remembered, and
        0 otherwise: one number stands for all of them, and a new turn fares as what it continues.
        """
        if int(now) != int(self.now):
            self._rates.advance(now)
        self.now = now
        findable = tokens[:-TOKEN_BYTES]
        seen = self.history.note(namespace, findable, now)
        for run in seen:
            self._rates.end_rest(run.cohort, run.num_blocks, now, is_reused=True)
        num_found = self._count_found(findable, path)
        num_recent = sum(run.num_blocks for run in self._recent.note(namespace, findable, now))
        num_asked = len(findable) // self._block_bytes
        self._judgement.note(num_found - num_recent, num_asked)
        self._num_noted += 1
        if self._num_noted % _PERIOD == 0:
            self._judgement.judge()
            self._rates.advance(now)
            self._rates.refresh(now)
            self.version += 1
        return _prior_uses(seen, num_found, num_asked)

    def standing(self, group: "Group", last_used: float) -> Standing:
        """Of a group whose oldest leaf was last used then."""
        priority, cost, num_uses, bucket = group
        if self.is_by_recency:
            return priority, last_used
        return priority, self._rates.value(num_uses, bucket) * 2.0**cost

    def group_of(self, node: Node) -> "Group":
        """Where a leaf belongs at its present age."""
        cost = 0
        if self._cost is not None:
            cost = round(log2(self._cost(node.num_tokens_before + node.num_tokens)))
        return node.priority, cost, min(node.num_uses, _MAX_USES), bucket_of(self.now - node.last_used)

    def _stop_following(self, cohort: Cohort, num_blocks: int) -> None:
        self._rates.end_rest(cohort, num_blocks, self.now, is_reused=False)

    def _count_found(self, tokens: bytes, path: Sequence[Node]) -> int:
        """Whole blocks of the path that the tokens walk through; they may leave its last run early."""
        num_bytes = sum(len(node.tokens) for node in path[:-1])
        if path and tokens[num_bytes : num_bytes + len(path[-1].tokens)] == path[-1].tokens:
            num_bytes += len(path[-1].tokens)
        return num_bytes // self._block_bytes


Group = tuple[int, int, int, int]  # priority, cost's power of two, uses, bucket of age


def _prior_uses(seen: list[Recollection], num_found: int, num_asked: int) -> int:
    num_after = sum(run.num_blocks for run in seen) - num_found
    return seen[-1].num_uses + 1 if 2 * num_after > num_asked - num_found else 0


class _Judgement:
    """Whether learning has found more lately than recency would have; if not, it pauses, longer each time."""

    def __init__(self) -> None:
        self._num_gained = 0.0  # blocks
        self._num_asked = 0.0
        self._periods_left = 0
        self._next_pause = _SHORTEST_PAUSE

    @property
    def is_pausing(self) -> bool:
        """Whether recency decides."""
        return self._periods_left > 0

    def note(self, num_gained: int, num_asked: int) -> None:
        """One request found so many blocks more than recency would have, of those that it asked for."""
        self._num_gained += num_gained
        self._num_asked += num_asked

    def judge(self) -> None:
        """A period has ended."""
        if self._periods_left:
            self._periods_left -= 1
            self._num_gained = 0.0
        elif self._num_gained < -_MARGIN * self._num_asked:
            self._periods_left = self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
            self._num_gained = 0.0
        elif self._num_gained > _MARGIN * self._num_asked:
            self._next_pause = max(self._next_pause // 2, _SHORTEST_PAUSE)
        self._num_gained *= _MEMORY
        self._num_asked *= _MEMORY


class _GroupedQueue:
    """A heap by last use for each group. Leaves move on as they age; stale entries are skipped and swept."""

    def __init__(self, policy: Learned) -> None:
        self._policy = policy
        self._groups: dict[Group, list[tuple[float, int, Node]]] = {}
        self._order = count()  # first offered, first gone, among equals
        self._newest: dict[Node, int] = {}  # the entry that counts for each node
        self._num_entries = 0
        self._second = 0  # until when leaves have aged
        self._ranked: list[Group] = []  # by value; of the version, none when groups were added since
        self._version = -1

    def offer(self, node: Node) -> None:
        """Put a leaf into its group."""
        if not is_evictable(node):
            return
        entry = next(self._order)
        self._newest[node] = entry
        self._put(self._policy.group_of(node), (node.last_used, entry, node))
        if self._num_entries > 2 * len(self._newest) + 64:
            self._sweep()

    def peek(self) -> Standing | None:
        """The lowest standing of all groups."""
        group = self._first()
        return None if group is None else self._policy.standing(group, self._groups[group][0][0])

    def pop(self) -> Node | None:
        """The least recently used leaf of the lowest group."""
        group = self._first()
        if group is None:
            return None
        _, _, node = heappop(self._groups[group])
        self._num_entries -= 1
        del self._newest[node]
        return node

    def forget(self, node: Node) -> None:
        """Its entry is stale from now on."""
        self._newest.pop(node, None)

    def _put(self, group: Group, item: tuple[float, int, Node]) -> None:
        if group not in self._groups:
            self._groups[group] = []
            self._version = -1
        heappush(self._groups[group], item)
        self._num_entries += 1

    def _first(self) -> Group | None:
        """The group that gives the next leaf, with that leaf at its top."""
        if self._second != int(self._policy.now):
            self._second = int(self._policy.now)
            self._age()
        if self._policy.is_by_recency:
            live = [group for group in self._groups if self._is_live(group)]
            return min(live, key=self._standing, default=None)
        if self._version != self._policy.version:
            self._version = self._policy.version
            # Of equal values the oldest: a leaf of which nothing is known goes by recency.
            self._ranked = sorted(
                self._groups, key=lambda group: (self._policy.standing(group, 0.0), -group[3])
            )
        return next((group for group in self._ranked if self._is_live(group)), None)

    def _standing(self, group: Group) -> Standing:
        return self._policy.standing(group, self._groups[group][0][0])

    def _is_live(self, group: Group) -> bool:
        """Whether a group has a leaf; clears its top of what is stale."""
        heap = self._groups[group]
        while heap:
            _, entry, node = heap[0]
            if self._newest.get(node) == entry:
                if is_evictable(node):
                    return True
                del self._newest[node]
            heappop(heap)
            self._num_entries -= 1
        return False

    def _age(self) -> None:
        """Move leaves on to the buckets of their age."""
        now = self._policy.now
        for group in list(self._groups):
            heap = self._groups[group]
            while heap and group[3] < NUM_BUCKETS - 1 and now - heap[0][0] >= BOUNDS[group[3] + 1]:
                item = heappop(heap)
                self._num_entries -= 1
                if self._newest.get(item[2]) == item[1]:
                    self._put((*group[:3], bucket_of(now - item[0])), item)

    def _sweep(self) -> None:
        self._newest = {node: entry for node, entry in self._newest.items() if is_evictable(node)}
        for group, heap in self._groups.items():
            self._groups[group] = [item for item in heap if self._newest.get(item[2]) == item[1]]
            heapify(self._groups[group])
        self._num_entries = len(self._newest)
