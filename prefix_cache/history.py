"""What was asked for lately, whether or not it is still in the cache.

Owns a radix tree of whole blocks of tokens, without blocks behind them: runs that requests share are kept
once, and what has rested longest is forgotten first. Every run belongs to a cohort: the blocks that were last
used in the same second and equally often. Namespaces see nothing of each other here, not even what the cache
shares.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from prefix_cache.node import Namespace
from prefix_cache.tokens import TOKEN_BYTES, common_prefix

__all__ = ["Cohort", "History", "Recollection"]


@dataclass(slots=True, eq=False)
class Cohort:
    """Blocks that were last used together."""

    num_uses: int  # how often they had been used before that; capped by the history's `max_uses`
    last_used: float  # seconds
    num_blocks: int = 0


@dataclass(slots=True, eq=False)
class _Run:
    """Blocks that follow each other and were always asked for together."""

    key: bytes  # under which the parent knows it
    tokens: bytes  # packed, whole blocks
    parent: "_Run | None"
    cohort: Cohort
    num_uses: int = 0  # requests that found it here
    children: "dict[bytes, _Run]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recollection:
    """A run of a request that was seen before, as it was then."""

    num_blocks: int
    num_uses: int  # requests before this one that found it in the history; not capped
    cohort: Cohort


def _ignore(cohort: Cohort, num_blocks: int) -> None:
    pass


class History:
    """The last `num_blocks` blocks that were asked for, each once. Tokens are packed (see tokens.py)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_uses: int = 4,
        on_cohort: Callable[[Cohort], None] | None = None,
        on_forget: Callable[[Cohort, int], None] = _ignore,
    ) -> None:
        """`on_cohort` is told of each new cohort; `on_forget` of a cohort and how many blocks it is to lose
        because they are the oldest.
        """
        self.num_blocks = num_blocks
        self.num_remembered = 0  # blocks
        self._block_bytes = block_size * TOKEN_BYTES
        self._max_uses = max_uses
        self._on_cohort = on_cohort
        self._on_forget = on_forget
        self._root = _Run(b"", b"", None, Cohort(0, 0.0))
        # Oldest first. A run is moved to the end before its parent, so the first one never has children.
        self._order: OrderedDict[_Run, None] = OrderedDict()
        self._second = 0.0
        self._newest: dict[int, Cohort] = {}  # the cohorts of this second, by uses

    def match_length(self, namespace: Namespace, tokens: bytes) -> int:
        """How many leading tokens were asked for lately, in whole blocks. Refreshes nothing."""
        path, num_shared = self._find(namespace, tokens)
        num_bytes = sum(len(run.tokens) for run in path) + num_shared
        return num_bytes // TOKEN_BYTES

    def note(self, namespace: Namespace, tokens: bytes, now: float) -> list[Recollection]:
        """Remember that `tokens` were asked for; answers with what of them was seen before, root first.

        The part of the last block that is not whole is left out.
        """
        path, num_shared = self._find(namespace, tokens)
        if num_shared:
            path.append(self._split(path, namespace, tokens, num_shared))
        seen = [Recollection(self._count(run), run.num_uses, run.cohort) for run in path]
        for run in path:
            run.num_uses += 1
            self._leave(run)
            self._join(run, now)
        position = sum(len(run.tokens) for run in path)
        rest = tokens[position : len(tokens) // self._block_bytes * self._block_bytes]
        if rest:
            parent = path[-1] if path else self._root
            run = _Run(self._key(parent, namespace, rest), rest, parent, self._root.cohort)
            parent.children[run.key] = run
            path.append(run)
            self.num_remembered += self._count(run)
            self._join(run, now)
        for run in reversed(path):
            self._order[run] = None
            self._order.move_to_end(run)
        self._forget_oldest()
        return seen

    def forget(self, namespace: Namespace, tokens: bytes, num_kept: int) -> None:
        """No longer remember a request, from its end up, but for its first `num_kept` tokens and what others
        begin with.
        """
        path, _ = self._find(namespace, tokens)
        start = sum(len(run.tokens) for run in path)
        for run in reversed(path):
            start -= len(run.tokens)
            if run.children or start < num_kept * TOKEN_BYTES:
                return
            self._on_forget(run.cohort, self._count(run))
            self._leave(run)
            self.num_remembered -= self._count(run)
            self._remove(run)

    def check_invariants(self) -> None:
        """Assert from scratch what must always hold. Slow."""
        runs = list(self._order)
        assert self.num_remembered == sum(map(self._count, runs)) <= self.num_blocks
        members: dict[Cohort, int] = {}
        seen: set[_Run] = set()
        for run in runs:
            assert all(child in seen for child in run.children.values()), "a run is older than its child"
            assert run.parent is not None
            assert run.parent.children[run.key] is run, "a run is not where its parent looks for it"
            assert run.key.endswith(run.tokens[: self._block_bytes])
            assert len(run.tokens) % self._block_bytes == 0 < len(run.tokens)
            members[run.cohort] = members.get(run.cohort, 0) + self._count(run)
            seen.add(run)
        assert all(cohort.num_blocks == number for cohort, number in members.items())

    def _find(self, namespace: Namespace, tokens: bytes) -> tuple[list[_Run], int]:
        """The runs that the tokens walk through, and how many bytes (of whole blocks) of the next one."""
        path: list[_Run] = []
        run, position = self._root, 0
        while True:
            block = tokens[position : position + self._block_bytes]
            child = run.children.get(self._key(run, namespace, block))
            if child is None:
                return path, 0
            piece = tokens[position : position + len(child.tokens)]
            if piece != child.tokens:
                num_shared = common_prefix(bytearray(piece), bytearray(child.tokens)) * TOKEN_BYTES
                return path, num_shared // self._block_bytes * self._block_bytes
            path.append(child)
            run, position = child, position + len(piece)

    def _key(self, parent: _Run, namespace: Namespace, tokens: bytes) -> bytes:
        block = tokens[: self._block_bytes]
        return namespace + block if parent is self._root else block

    def _count(self, run: _Run) -> int:
        return len(run.tokens) // self._block_bytes

    def _split(self, path: list[_Run], namespace: Namespace, tokens: bytes, num_bytes: int) -> _Run:
        """Cut the run that the tokens leave in its middle; returns the upper part, which is new."""
        parent = path[-1] if path else self._root
        position = sum(len(run.tokens) for run in path)
        lower = parent.children[self._key(parent, namespace, tokens[position:])]
        upper = _Run(lower.key, lower.tokens[:num_bytes], parent, lower.cohort, lower.num_uses)
        parent.children[upper.key] = upper
        lower.tokens = lower.tokens[num_bytes:]
        lower.key = lower.tokens[: self._block_bytes]
        lower.parent = upper
        upper.children[lower.key] = lower
        return upper

    def _join(self, run: _Run, now: float) -> None:
        """Make a run part of the cohort of this second."""
        if now >= self._second + 1.0 or now < self._second:
            self._second = now
            self._newest = {}
        num_uses = min(run.num_uses, self._max_uses)
        cohort = self._newest.get(num_uses)
        if cohort is None:
            cohort = self._newest[num_uses] = Cohort(num_uses, now)
            if self._on_cohort is not None:
                self._on_cohort(cohort)
        cohort.num_blocks += self._count(run)
        run.cohort = cohort

    def _leave(self, run: _Run) -> None:
        run.cohort.num_blocks -= self._count(run)

    def _forget_oldest(self) -> None:
        while self.num_remembered > self.num_blocks:
            run = next(iter(self._order))
            num_forgotten = min(self._count(run), self.num_remembered - self.num_blocks)
            self._on_forget(run.cohort, num_forgotten)
            run.cohort.num_blocks -= num_forgotten
            self.num_remembered -= num_forgotten
            if num_forgotten < self._count(run):
                run.tokens = run.tokens[: -num_forgotten * self._block_bytes]
                continue
            self._remove(run)

    def _remove(self, run: _Run) -> None:
        del self._order[run]
        assert run.parent is not None, "the root is not in the order"
        del run.parent.children[run.key]
