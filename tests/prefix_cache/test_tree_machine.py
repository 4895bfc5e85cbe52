"""The tree and its pool against a plain model: random leases over few tokens, few blocks and causal
memory.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefix_cache.lease import Lease
from prefix_cache.node import SHARED, Namespace
from prefix_cache.tokens import pack
from prefix_cache.tree import PrefixCache
from tests.prefix_cache.memory import DigestMemory

BLOCK_SIZE = 4
NUM_BLOCKS = 12

# Two tokens and short runs, so that prefixes collide all the time.
prompts = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=20)
namespaces = st.sampled_from([SHARED, b"a", b"b"])


@dataclass(eq=False)
class Holder:
    """One sequence: the tokens it wants, and how many of them it has computed."""

    lease: Lease
    namespace: Namespace
    tokens: list[int]
    num_computed: int


def common_prefix(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


class TreeMachine(RuleBasedStateMachine):
    """Leases come, compute, end; the memory behind their tables must always be their own."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
        self.memory = DigestMemory(NUM_BLOCKS, BLOCK_SIZE)
        self.holders: list[Holder] = []
        self.computed: list[tuple[Namespace, list[int]]] = []  # all that was ever committed
        self.now = 0.0

    def findable(self, namespace: Namespace, tokens: list[int]) -> int:
        """The plain model: the longest prefix that anybody whom the namespace may see has committed."""
        visible = [run for owner, run in self.computed if owner in (SHARED, namespace)]
        return max((common_prefix(run, tokens) for run in visible), default=0)

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    @rule(namespace=namespaces, tokens=prompts, max_new=st.integers(1, 20))
    def acquire(self, namespace: Namespace, tokens: list[int], max_new: int) -> None:
        num_free, num_blocks = self.cache.ledger.num_free, -(-len(tokens) // BLOCK_SIZE)
        had_room = self.cache.ledger.has_room(namespace, num_blocks)
        expected = self.findable(namespace, tokens[:-1])
        lease = self.cache.acquire(
            namespace, pack(tokens), max_new=max_new, num_required=len(tokens), now=self.tick()
        )
        if lease is None:
            assert not had_room
            return
        assert lease.num_matched <= expected
        if not self.cache.ledger.num_evicted and num_free >= num_blocks:
            # Else the block that the match ends in may have had to make room.
            assert lease.num_matched == expected
        assert len(lease.blocks) * BLOCK_SIZE >= min(lease.num_matched + max_new, len(tokens))
        self.holders.append(Holder(lease, namespace, tokens, lease.num_matched))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Copies, then writes, then commits: as the engine does it."""
        chosen = data.draw(st.lists(st.sampled_from(self.holders), unique=True, min_size=1))
        spans = []
        for holder in chosen:
            end = min(holder.num_computed + data.draw(st.integers(1, 6)), len(holder.tokens))
            if end > holder.num_computed and self.cache.grow(holder.lease, end):
                spans.append((holder, end))
        self.memory.copy(self.cache.take_copies())
        for holder, end in spans:
            self.memory.compute(holder.lease.blocks, holder.tokens, holder.num_computed, end)
        self.cache.finish_copies()
        for holder, end in spans:
            holder.num_computed = end
            self.commit(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), extra=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=6))
    def generate(self, data: st.DataObject, extra: list[int]) -> None:
        """A sequence draws more tokens than its prompt had."""
        holder = data.draw(st.sampled_from(self.holders))
        if len(holder.tokens) + len(extra) <= 24:
            holder.tokens = holder.tokens + extra

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.cache.release(holder.lease, self.tick())

    def commit(self, holder: Holder) -> None:
        tokens = holder.tokens[: holder.num_computed]
        self.cache.commit(holder.lease, pack(tokens[holder.lease.num_committed :]))
        self.computed.append((holder.namespace, tokens))

    @invariant()
    def books_balance(self) -> None:
        self.cache.check_invariants(holder.lease for holder in self.holders)

    @invariant()
    def memory_is_right(self) -> None:
        """What a lease has computed or matched lies behind its table, once planned copies are done."""
        pending = {copy.target_block for copy, _ in self.cache._planned}
        for holder in self.holders:
            if pending.isdisjoint(holder.lease.blocks):
                self.memory.check(holder.lease.blocks, holder.tokens, holder.num_computed)

    @invariant()
    def held_tokens_are_counted_once(self) -> None:
        held = self.cache.num_held_tokens((holder.lease, holder.num_computed) for holder in self.holders)

        assert 0 <= held <= self.cache.ledger.num_held * BLOCK_SIZE

    def teardown(self) -> None:
        self.memory.copy(self.cache.take_copies())
        self.cache.finish_copies()
        for holder in self.holders:
            self.cache.release(holder.lease, self.tick())
        self.cache.check_invariants([])
        assert self.cache.ledger.num_held == 0


TestTree = TreeMachine.TestCase
