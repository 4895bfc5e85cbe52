"""The learned policy: the protocol of queues, what it learns, and when it leaves the choice to recency."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefix_cache.eviction import is_evictable
from prefix_cache.learned import Learned
from prefix_cache.node import Node
from prefix_cache.plan import BlockId
from prefix_cache.tokens import pack
from prefix_cache.tree import PrefixCache
from tests.prefix_cache.test_tree_machine import BLOCK_SIZE, NUM_BLOCKS, TreeMachine


def ask(cache: PrefixCache, names: list[int], now: float) -> int:
    """One request's whole life, in blocks of one token; answers with how many blocks it found."""
    lease = cache.acquire(b"", pack([*names, -1]), max_new=99, num_required=len(names), now=now)
    assert lease is not None
    cache.commit(lease, pack(names[lease.num_committed :]))
    cache.release(lease, now)
    return lease.num_matched


def count_found_under_scans(cache: PrefixCache, num_rounds: int) -> int:
    """One conversation comes back each 30 s, between prompts that are asked once; finds of the last half."""
    num_found, name = 0, 100
    for number in range(num_rounds):
        num_found_now = ask(cache, [1, 2, 3, 4], number * 30.0)
        num_found += num_found_now if number >= num_rounds // 2 else 0
        for scan in range(4):
            ask(cache, list(range(name, name + 4)), number * 30.0 + 5.0 * (scan + 1))
            name += 4
    return num_found


def test_what_comes_back_is_kept_through_scans_that_recency_would_lose_it_to() -> None:
    by_recency, learned = PrefixCache(12, 1), PrefixCache(12, 1, policy=Learned(12, 1))

    assert count_found_under_scans(by_recency, 100) == 0
    assert count_found_under_scans(learned, 100) == 4 * 50


def test_until_something_is_learned_recency_decides() -> None:
    cache = PrefixCache(4, 1, policy=Learned(4, 1))
    ask(cache, [1, 2], 0.1)
    ask(cache, [1, 2], 0.2)
    ask(cache, [3, 4], 0.3)

    ask(cache, [5, 6], 0.4)

    assert cache.match_length(b"", pack([1, 2])) == 0
    assert cache.match_length(b"", pack([3, 4])) == 2


def test_it_pauses_when_recency_would_have_found_more() -> None:
    policy = Learned(8, 1)
    for number in range(250):
        policy.note_match(b"", pack([1, 2, 3, -1]), [], float(number))  # asked for always, and never found

    assert policy.is_by_recency


def test_it_does_not_pause_while_it_finds_as_much() -> None:
    policy = Learned(8, 1)
    run = Node(b"", bytearray(pack([1, 2, 3])), [BlockId(0), BlockId(1), BlockId(2)])
    for number in range(250):
        policy.note_match(b"", pack([1, 2, 3, -1]), [run], float(number))

    assert not policy.is_by_recency


def test_a_run_that_the_request_leaves_early_is_not_found() -> None:
    policy = Learned(8, 1)
    longer = Node(b"", bytearray(pack([1, 2, 9])), [BlockId(0), BlockId(1), BlockId(2)])
    for number in range(250):
        policy.note_match(b"", pack([1, 2, 3, -1]), [longer], float(number))

    assert policy.is_by_recency


def test_uses_outlive_eviction() -> None:
    policy = Learned(8, 1)
    first = policy.note_match(b"", pack([1, 2, 3, -1]), [], 0.0)
    second = policy.note_match(b"", pack([1, 2, 3, -1]), [], 1.0)
    third = policy.note_match(b"", pack([1, 2, 3, 4, -1]), [], 2.0)
    mostly_new = policy.note_match(b"", pack([1, 5, 6, 7, -1]), [], 3.0)

    assert (first, second, third, mostly_new) == (0, 1, 2, 0)


def test_what_costs_more_to_compute_again_is_kept() -> None:
    known = Node(b"", bytearray(pack([1])), [BlockId(2)])
    policy = Learned(64, 1, cost=lambda position: 1.0 if position < 4 else 64.0)
    for number in range(100):
        policy.note_match(b"", pack([1, -1]), [known], float(number))
    queue = policy.make_queue()
    root = Node(b"")
    deep = Node(b"", bytearray(pack(range(10, 16))), [BlockId(0)], num_uses=4)
    shallow = Node(b"", bytearray(pack(range(20, 22))), [BlockId(1)], num_uses=4)
    for node in (deep, shallow):
        root.attach(node)
        node.last_used = 99.0
        queue.offer(node)

    assert queue.pop() is shallow
    assert queue.pop() is deep


def test_a_leaf_that_is_offered_again_and_again_is_kept_once() -> None:
    queue = Learned(8, 1).make_queue()
    root, leaf = Node(b""), Node(b"", bytearray(pack([1])), [BlockId(0)])
    root.attach(leaf)

    for _ in range(1000):
        queue.offer(leaf)

    assert queue._num_entries <= 66  # type: ignore[attr-defined]
    assert queue.pop() is leaf
    assert queue.pop() is None


class QueueMachine(RuleBasedStateMachine):
    """One queue against the set of leaves that may go."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Learned(16, 1)
        self.queue = self.policy.make_queue()
        self.root = Node(b"")
        self.nodes: list[Node] = []
        self.now = 0.0

    @rule(names=st.lists(st.integers(1, 3), min_size=1, max_size=4), pause=st.floats(0.0, 40.0))
    def ask(self, names: list[int], pause: float) -> None:
        self.now += pause
        for _ in range(60):
            self.policy.note_match(b"", pack([*names, -1]), [], self.now)

    @rule(priority=st.integers(-1, 1), num_uses=st.integers(0, 6))
    def add(self, priority: int, num_uses: int) -> None:
        tokens = bytearray(pack([len(self.nodes) + 10]))
        node = Node(b"", tokens, [BlockId(0)], priority=priority, num_uses=num_uses, last_used=self.now)
        self.root.attach(node)
        self.nodes.append(node)
        self.queue.offer(node)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), num_locks=st.integers(0, 1))
    def use(self, data: st.DataObject, num_locks: int) -> None:
        """Held, or let go again; only the latter is told."""
        node = data.draw(st.sampled_from(self.nodes))
        node.num_locks, node.last_used = num_locks, self.now
        node.num_uses += 1
        self.queue.offer(node)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.nodes))
        self.nodes.remove(node)
        node.detach()
        self.queue.forget(node)

    @rule()
    def pop(self) -> None:
        standing = self.queue.peek()
        assert self.queue.peek() == standing
        node = self.queue.pop()
        candidates = [node for node in self.nodes if is_evictable(node)]
        if node is None:
            assert standing is None
            assert not candidates
            return
        assert standing is not None
        assert node in candidates
        assert standing[0] == node.priority == min(node.priority for node in candidates)
        self.nodes.remove(node)
        node.detach()
        self.queue.forget(node)

    @invariant()
    def entries_are_counted(self) -> None:
        groups = self.queue._groups  # type: ignore[attr-defined]
        assert self.queue._num_entries == sum(map(len, groups.values()))  # type: ignore[attr-defined]


class LearnedTreeMachine(TreeMachine):
    """All that holds of the tree holds whatever the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE, policy=Learned(NUM_BLOCKS, BLOCK_SIZE))


TestQueue = QueueMachine.TestCase
TestLearnedTree = LearnedTreeMachine.TestCase
