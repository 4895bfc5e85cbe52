"""What one sequence holds: a path in the tree, and blocks of its own."""

from dataclasses import dataclass, field

from prefix_cache.node import Namespace, Node
from prefix_cache.plan import BlockId

__all__ = ["PLAIN", "Lease", "Retention"]


@dataclass(frozen=True, slots=True)
class Retention:
    """What becomes of a sequence's blocks when it ends."""

    is_side: bool = False  # it leaves no trace: it refreshes nothing, and what it computes is not kept
    persists: bool = False  # they may go to the disk
    priority: int = 0  # against eviction; lower ones go first


PLAIN = Retention()


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
    blocks: list[BlockId] = field(default_factory=list)
    duplicates: list[BlockId] = field(default_factory=list)
