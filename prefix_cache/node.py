"""One run of blocks in the radix tree, and the topology around it.

Tokens lie packed. All blocks are full but, in a leaf, perhaps the last. Children of one namespace are sorted
by their tokens; no two of them share a whole first block, but they may share leading tokens of it: ownership
is by block, matching by token.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prefix_cache.plan import BlockId
from prefix_cache.tokens import TOKEN_BYTES, common_prefix

__all__ = ["SHARED", "Namespace", "Node"]

Namespace = bytes

SHARED: Namespace = b""  # edges that every namespace may walk


def _by_tokens(node: "Node") -> bytearray:
    return node.tokens


@dataclass(slots=True, eq=False)
class Node:
    """A run of blocks that begins where its parent ends. Compared by identity."""

    namespace: Namespace
    tokens: bytearray = field(default_factory=bytearray)  # packed int32
    blocks: list[BlockId] = field(default_factory=list)
    parent: "Node | None" = None
    children: "dict[Namespace, list[Node]]" = field(default_factory=dict)
    num_locks: int = 0  # leases, copies and pins whose path runs through this node
    num_pins: int = 0
    num_uses: int = 0  # sequences that found this run in the tree, and those that it was evicted from before
    priority: int = 0  # the highest that was asked for it; lower ones are evicted first
    created: float = 0.0
    last_used: float = 0.0
    is_leaving: bool = False  # shared no longer: nobody new finds it, and it goes when nobody holds it
    is_passing: bool = False  # it goes when nobody holds it, and so does all that hangs from it
    serial: int = 0  # rises in the order in which nodes come to be; a split's upper part keeps it

    @property
    def num_tokens(self) -> int:
        """Tokens in this run."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def is_root(self) -> bool:
        """Whether this is the top of a tree; a detached node also has no parent, but holds tokens."""
        return self.parent is None and not self.blocks

    @property
    def is_leaf(self) -> bool:
        """Whether nothing hangs below."""
        return not self.children

    @property
    def num_children(self) -> int:
        """Runs that hang below, of every namespace."""
        return sum(len(siblings) for siblings in self.children.values())

    def path(self) -> "Iterator[Node]":
        """This node and its ancestors, the root left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def attach(self, child: "Node") -> None:
        """Hang a child below, in its place among its siblings."""
        assert child.parent is None, "a node has one parent"
        siblings = self.children.setdefault(child.namespace, [])
        siblings.insert(bisect_left(siblings, child.tokens, key=_by_tokens), child)
        child.parent = self

    def detach(self) -> None:
        """Take this node, with all below it, off its parent."""
        assert self.parent is not None, "the root cannot be detached"
        siblings = self.parent.children[self.namespace]
        if len(siblings) == 1:
            del self.parent.children[self.namespace]
        else:
            del siblings[self._index(siblings)]
        self.parent = None

    def extend(self, tokens: bytearray, block_size: int) -> None:
        """Add tokens at the end, and keep this node's place among its siblings right."""
        parent = self.parent
        assert parent is not None, "the root holds no tokens"
        if self.num_tokens >= block_size and not self._has_equal(block_size):
            self.tokens += tokens  # its place is settled by its first, full block
            return
        self.detach()
        self.tokens += tokens
        parent.attach(self)

    def shorten(self, num_blocks: int, num_tokens: int) -> None:
        """Keep the first so many blocks and tokens, and this node's place among its siblings right."""
        parent = self.parent
        assert parent is not None, "the root holds no blocks"
        self.detach()
        del self.blocks[num_blocks:], self.tokens[num_tokens * TOKEN_BYTES :]
        parent.attach(self)

    def nearest_child(
        self, namespace: Namespace, tokens: bytearray, *, sees_leaving: bool = False
    ) -> "tuple[Node | None, int]":
        """The child that shares most leading tokens with a run, and how many.

        Looks at children that the namespace may see: shared ones first, so that they win a tie. Those that
        are leaving are seen by who takes them away.
        """
        best, best_length = self.nearest_of(SHARED, tokens, sees_leaving=sees_leaving)
        if namespace != SHARED:
            own, own_length = self.nearest_of(namespace, tokens, sees_leaving=sees_leaving)
            if own_length > best_length:
                return own, own_length
        return best, best_length

    def nearest_of(
        self, namespace: Namespace, tokens: bytearray, *, sees_leaving: bool = False
    ) -> "tuple[Node | None, int]":
        """The same among the children of one namespace."""
        best: Node | None = None
        best_length = 0
        siblings = self.children.get(namespace, [])
        index = bisect_left(siblings, tokens, key=_by_tokens)
        for child in siblings[max(0, index - 1) : index + 1]:
            length = common_prefix(child.tokens, tokens)
            if length > best_length and (sees_leaving or not child.is_leaving):
                best, best_length = child, length
        return best, best_length

    def sibling_before(self) -> "Node | None":
        """The sibling just before in token order: a run that is a prefix of this one would be it."""
        return self._sibling(-1)

    def sibling_after(self) -> "Node | None":
        """The sibling just after this node in token order: a run that this one is a prefix of would be it."""
        return self._sibling(+1)

    @property
    def num_tokens_before(self) -> int:
        """Tokens on the path above this run."""
        return sum(node.num_tokens for node in self.path()) - self.num_tokens

    def path_namespaces(self) -> list[Namespace]:
        """The namespace of each block from the root to the end of this run."""
        parts = reversed(list(self.path()))
        return [part.namespace for part in parts for _ in part.blocks]

    def path_tokens(self) -> bytes:
        """All tokens from the root to the end of this run, packed."""
        return b"".join(reversed([node.tokens for node in self.path()]))

    def split(self, num_blocks: int, block_size: int, serial: int) -> "Node":
        """Cut this node after `num_blocks` blocks; returns the new upper part, and stays as the lower, which
        gets the new serial.
        """
        assert 0 < num_blocks < len(self.blocks), "a split leaves blocks on both sides"
        assert self.parent is not None
        cut = num_blocks * block_size * TOKEN_BYTES
        parent = self.parent
        self.detach()
        upper = Node(
            self.namespace,
            self.tokens[:cut],
            self.blocks[:num_blocks],
            num_locks=self.num_locks,
            num_pins=self.num_pins,
            num_uses=self.num_uses,
            priority=self.priority,
            created=self.created,
            last_used=self.last_used,
            is_leaving=self.is_leaving,
            is_passing=self.is_passing,
            serial=self.serial,
        )
        self.serial = serial
        del self.tokens[:cut], self.blocks[:num_blocks]
        parent.attach(upper)
        upper.attach(self)
        return upper

    def walk(self) -> "Iterator[Node]":
        """All nodes below this one, parents before children."""
        pending = [child for siblings in self.children.values() for child in siblings]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(child for siblings in node.children.values() for child in siblings)

    def check_invariants(self, block_size: int) -> None:
        """Tokens, blocks, order of children and locks agree with each other."""
        num_full, num_tail = divmod(self.num_tokens, block_size)
        assert len(self.blocks) == num_full + bool(num_tail) > 0, "tokens and blocks of a node disagree"
        assert self.is_leaf or not num_tail, "only a leaf may end inside a block"
        for siblings in self.children.values():
            assert siblings == sorted(siblings, key=_by_tokens), "siblings are out of order"
            assert all(self.num_locks >= child.num_locks for child in siblings), (
                "a held node has held ancestors"
            )
            assert not self.is_passing or all(child.is_passing for child in siblings), (
                "what is kept hangs from what is kept"
            )
        assert self.num_locks or not self.is_passing, "what passes goes with its last holder"

    def _sibling(self, offset: int) -> "Node | None":
        assert self.parent is not None, "the root has no siblings"
        siblings = self.parent.children[self.namespace]
        index = self._index(siblings) + offset
        return siblings[index] if 0 <= index < len(siblings) else None

    def _index(self, siblings: "list[Node]") -> int:
        index = bisect_left(siblings, self.tokens, key=_by_tokens)
        while siblings[index] is not self:  # equal runs stand side by side for as long as a copy holds one
            index += 1
        return index

    def _has_equal(self, block_size: int) -> bool:
        """Whether a sibling begins with the same block: there may be one while a copy holds either."""
        assert self.parent is not None, "the root has no siblings"
        siblings = self.parent.children[self.namespace]
        if len(siblings) == 1:
            return False
        index, first = self._index(siblings), self.tokens[: block_size * TOKEN_BYTES]
        neighbours = (*siblings[max(0, index - 1) : index], *siblings[index + 1 : index + 2])
        return any(sibling.tokens.startswith(first) for sibling in neighbours)
