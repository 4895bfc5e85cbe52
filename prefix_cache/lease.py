"""What one sequence holds: a path in the tree, and blocks of its own; and how it came by them."""

from dataclasses import dataclass, field
from typing import Literal

from prefix_cache.node import Namespace, Node
from prefix_cache.plan import BlockId, Tier

__all__ = ["PLAIN", "Explanation", "Lease", "Reason", "Retention"]

Reason = Literal[
    "none",  # nothing is missing: all but the last token was found
    "empty",  # nothing that the namespace may see begins like this
    "new",  # the cached path ends here
    "parted",  # the cached path goes on with other tokens
    "evicted",  # it was here, and had to make room
    "recomputed",  # it lies on a colder tier, and computing it again was the cheaper way
]


@dataclass(frozen=True, slots=True)
class Retention:
    """What becomes of a sequence's blocks when it ends."""

    is_side: bool = False  # it leaves no trace: it refreshes nothing, and what it computes goes with it
    persists: bool = False  # they may go to the disk
    priority: int = 0  # against eviction; lower ones go first


PLAIN = Retention()


@dataclass(slots=True, eq=False)
class Explanation:
    """Where a prompt was found, in tokens by tier. `parted_at` is the first token that no tier has."""

    found: dict[Tier, int]
    parted_at: int
    reason: Reason
    num_copied_blocks: int = 0

    def cut_to(self, num_tokens: int) -> None:
        """Less was had than was found: take the rest off, the coldest tier first."""
        excess = sum(self.found.values()) - num_tokens
        for tier in (Tier.DISK, Tier.HOST, Tier.DEVICE):
            taken = min(max(excess, 0), self.found.get(tier, 0))
            if taken:
                self.found[tier] -= taken
                excess -= taken


@dataclass(slots=True, eq=False)
class Lease:
    """A sequence's blocks in order, and how much of them the tree knows. Mutated by the cache alone.

    Tokens [0, num_committed) lie on the path from the root to `node`, whose run ends exactly there. `blocks`
    is append-only: where an equal block was in the tree first, the lease keeps its own in the table and lists
    it in `duplicates`.
    """

    namespace: Namespace
    node: Node
    num_matched: int  # tokens found in the cache when the lease was taken
    num_committed: int
    started: float  # when the lease was taken
    retention: Retention = PLAIN
    prior_uses: int = 0  # uses that are remembered of the tokens after the match
    is_passing: bool = False  # what it commits can be found while somebody holds it, and goes then
    blocks: list[BlockId] = field(default_factory=list)
    duplicates: list[BlockId] = field(default_factory=list)
    explanation: Explanation | None = None
