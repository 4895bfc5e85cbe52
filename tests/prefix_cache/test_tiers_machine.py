"""All tiers against a plain model: leases, transfers copy by copy, parks, pins, floors, crashes, damage."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefix_cache.assembly import CacheSizes, assemble
from prefix_cache.lease import Lease, Retention
from prefix_cache.movement import Movement
from prefix_cache.node import SHARED, Namespace
from prefix_cache.pins import PinsFull
from prefix_cache.plan import Tier, Transfer
from prefix_cache.quota import Quota, account_of
from prefix_cache.swap import SwapRates
from prefix_cache.tokens import pack
from tests.prefix_cache.test_tree_machine import common_prefix
from tests.prefix_cache.tier_memory import TierMemory

BLOCK_SIZE = 4
NUM_BLOCKS = {Tier.DEVICE: 12, Tier.HOST: 8, Tier.DISK: 9}
ANN, BEN = b"a" * 16, b"b" * 16
FLOOR, CEILING = 2, 7
FINGERPRINT = b"model"
PARK_AFTER = 5.0

# Two tokens and short runs, so that prefixes collide all the time.
prompts = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=20)
namespaces = st.sampled_from([SHARED, ANN, BEN, BEN + b"salt"])
retentions = st.builds(Retention, is_side=st.booleans(), persists=st.booleans(), priority=st.integers(-1, 1))


@dataclass(eq=False)
class Holder:
    """One sequence: the tokens it wants, and how many of them it has computed."""

    lease: Lease
    namespace: Namespace
    tokens: list[int]
    num_computed: int


@dataclass(eq=False)
class Running:
    """A transfer that was taken, and how many of its copies are done."""

    transfer: Transfer
    num_done: int = 0


class TiersMachine(RuleBasedStateMachine):
    """Whatever happens, blocks are conserved in every tier, and every block holds what its path says."""

    @initialize(has_host=st.booleans(), has_quotas=st.booleans(), mode=st.sampled_from(["auto", "always"]))
    def start(self, has_host: bool, has_quotas: bool, mode: str) -> None:
        self.sizes = CacheSizes(
            num_blocks=NUM_BLOCKS[Tier.DEVICE],
            block_size=BLOCK_SIZE,
            num_host_blocks=NUM_BLOCKS[Tier.HOST] if has_host else 0,
            num_disk_blocks=NUM_BLOCKS[Tier.DISK],
            max_request_tokens=24,
            quotas={
                account_of(ANN): Quota(floor_blocks=FLOOR),
                account_of(BEN): Quota(ceiling_blocks=CEILING),
            }
            if has_quotas
            else {},
        )
        self.mode = mode
        self.memory = TierMemory(NUM_BLOCKS, BLOCK_SIZE)
        self.computed: list[tuple[Namespace, list[int]]] = []  # all that was ever committed to stay
        self.passed: list[tuple[Namespace, list[int]]] = []  # and what was found only while it was held
        self.now = 0.0
        self.boot()

    def boot(self) -> None:
        """Begin with what lies on the disk."""
        self.cache, _ = assemble(
            self.sizes,
            rates=SwapRates(1.0, {}, mode=self.mode),
            fingerprint=FINGERPRINT,
            records=dict(self.memory.records),
            disk_for_all=False,
            park_after=PARK_AFTER,
            now=self.now,
        )
        self.holders: list[Holder] = []
        self.running: list[Running] = []
        self.movements: list[Movement] = []
        self.pinned: set[str] = set()
        self.erase()

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def erase(self) -> None:
        for block in self.cache.take_erased():
            self.memory.erase(block)

    def findable(self, namespace: Namespace, tokens: list[int], *, is_kept: bool = False) -> int:
        """The plain model: the longest prefix that anybody whom the namespace may see has committed."""
        runs = self.computed if is_kept else [*self.computed, *self.passed]
        visible = [run for owner, run in runs if owner in (SHARED, namespace)]
        return max((common_prefix(run, tokens) for run in visible), default=0)

    def ready(self) -> list[Holder]:
        return [holder for holder in self.holders if not self.cache.is_loading(holder.lease)]

    @rule(namespace=namespaces, tokens=prompts, max_new=st.integers(1, 20), retention=retentions)
    def acquire(self, namespace: Namespace, tokens: list[int], max_new: int, retention: Retention) -> None:
        had_room = self.cache.device.ledger.has_room(namespace, -(-len(tokens) // BLOCK_SIZE))
        expected = self.findable(namespace, tokens[:-1])
        lease = self.cache.acquire(
            namespace,
            pack(tokens),
            max_new=max_new,
            num_required=len(tokens),
            now=self.tick(),
            retention=retention,
        )
        if lease is None:
            assert not had_room
            return
        assert lease.explanation is not None
        assert sum(lease.explanation.found.values()) <= expected
        assert lease.explanation.parted_at <= expected
        assert len(lease.blocks) * BLOCK_SIZE >= min(lease.num_matched + max_new, len(tokens))
        self.holders.append(Holder(lease, namespace, tokens, lease.num_matched))
        if not retention.is_side:  # what passed and is used to stay, stays
            self.computed += [(owner, tokens[: lease.num_matched]) for owner in (SHARED, namespace)]

    @precondition(lambda self: self.ready())
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Copies, then writes, then commits: as the engine does it."""
        chosen = data.draw(st.lists(st.sampled_from(self.ready()), unique=True, min_size=1))
        spans = []
        for holder in chosen:
            end = min(holder.num_computed + data.draw(st.integers(1, 6)), len(holder.tokens))
            if end > holder.num_computed and self.cache.grow(holder.lease, end):
                spans.append((holder, end))
        device = self.memory.tiers[Tier.DEVICE]
        device.copy(self.cache.take_copies())
        for holder, end in spans:
            device.compute(holder.lease.blocks, holder.tokens, holder.num_computed, end)
        self.cache.finish_copies()
        for holder, end in spans:
            holder.num_computed = end
            tokens = holder.tokens[:end]
            self.cache.commit(holder.lease, pack(tokens[holder.lease.num_committed :]))
            runs = self.passed if holder.lease.retention.is_side else self.computed
            runs.append((holder.namespace, tokens))

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

    @rule(num=st.integers(1, 3))
    def take_transfers(self, num: int) -> None:
        self.erase()
        for transfer in self.cache.take_transfers(num, self.tick()):
            assert transfer.copies
            assert len(transfer.records) in (0, len(transfer.copies))
            self.running.append(Running(transfer))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num=st.integers(1, 4))
    def carry_out(self, data: st.DataObject, num: int) -> None:
        """Some copies of a transfer; after the last one, or one that finds damage, its end is told."""
        running = data.draw(st.sampled_from(self.running))
        for _ in range(num):
            if not self.memory.carry_out(running.transfer, running.num_done):
                self.end(running, is_damaged=True)
                return
            running.num_done += 1
            if running.num_done == len(running.transfer.copies):
                self.end(running)
                return

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """The worker gives up in the middle."""
        self.end(data.draw(st.sampled_from(self.running)))

    def end(self, running: Running, *, is_damaged: bool = False) -> None:
        self.running.remove(running)
        self.cache.finish(running.transfer, running.num_done, self.tick(), is_damaged=is_damaged)
        self.erase()
        for holder in self.ready():
            holder.num_computed = max(holder.num_computed, holder.lease.num_matched)

    @rule(namespace=namespaces, tokens=prompts)
    def park(self, namespace: Namespace, tokens: list[int]) -> None:
        self.movements.append(self.cache.park(namespace, pack(tokens)))

    @rule(namespace=namespaces, tokens=prompts)
    def prefetch(self, namespace: Namespace, tokens: list[int]) -> None:
        self.movements.append(self.cache.prefetch(namespace, pack(tokens), self.tick()))

    @rule(namespace=namespaces, tokens=prompts)
    def forget(self, namespace: Namespace, tokens: list[int]) -> None:
        self.cache.forget(namespace, pack(tokens))
        self.erase()

    @rule(name=st.sampled_from("xyz"), namespace=namespaces, tokens=prompts, seconds=st.none() | st.just(9.0))
    def pin(self, name: str, namespace: Namespace, tokens: list[int], seconds: float | None) -> None:
        until = None if seconds is None else self.now + seconds
        try:
            hold = self.cache.pins.set(name, namespace, pack(tokens), until)
        except PinsFull:
            return
        assert hold.num_tokens <= self.findable(namespace, tokens)

    @rule(name=st.sampled_from("xyz"))
    def unpin(self, name: str) -> None:
        self.cache.pins.end(name)

    @rule(seconds=st.integers(1, 12))
    def tend(self, seconds: int) -> None:
        self.now += seconds
        self.cache.tend(self.now)

    @precondition(lambda self: self.memory.records)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.memory.records)))
        self.memory.damaged.add(block)

    @rule(is_torn=st.booleans())
    def crash(self, is_torn: bool) -> None:
        """The process ends between any two copies, or in the middle of a write."""
        for running in self.running:
            if is_torn and running.transfer.target is Tier.DISK:
                self.memory.begin_write(running.transfer, running.num_done)
        self.memory.crash()
        self.boot()

    @invariant()
    def books_balance(self) -> None:
        self.cache.check_invariants(holder.lease for holder in self.holders)

    @invariant()
    def memory_is_right(self) -> None:
        """What a lease has computed or matched lies behind its table, once planned copies are done."""
        pending = {copy.target_block for copy, _ in self.cache.device._planned}
        device = self.memory.tiers[Tier.DEVICE]
        for holder in self.ready():
            if pending.isdisjoint(holder.lease.blocks):
                device.check(holder.lease.blocks, holder.tokens, holder.num_computed)

    @invariant()
    def every_tier_holds_what_its_tree_says(self) -> None:
        for tree in (self.cache.device, *self.cache.colder):
            memory = self.memory.tiers[tree.tier]
            for node in tree.nodes():
                path = list(reversed(list(node.path())))
                blocks = [block for part in path for block in part.blocks]
                tokens = node.path_tokens()
                ids = [tokens[place] for place in range(0, len(tokens), 4)]  # small numbers: their first byte
                memory.check(blocks, ids, len(ids))
                assert len(ids) <= self.findable(node.namespace, ids, is_kept=not node.is_passing)

    @invariant()
    def quotas_hold(self) -> None:
        if not self.sizes.quotas:
            return
        nodes = list(self.cache.device.nodes())
        num_owned = sum(len(node.blocks) for node in nodes if account_of(node.namespace) == BEN)
        assert num_owned <= CEILING

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.memory.tiers[Tier.DEVICE].copy(self.cache.take_copies())
        self.cache.finish_copies()
        for holder in list(self.holders):
            self.cache.release(holder.lease, self.tick())
        for _ in range(1000):
            self.erase()
            for transfer in self.cache.take_transfers(3, self.tick()):
                self.running.append(Running(transfer))
            if not self.running:
                break
            running = self.running[0]
            while self.memory.carry_out(running.transfer, running.num_done):
                running.num_done += 1
                if running.num_done == len(running.transfer.copies):
                    break
            is_damaged = running.num_done < len(running.transfer.copies)
            self.end(running, is_damaged=is_damaged)
        assert not self.running, "writes come to an end"
        assert all(movement.is_done for movement in self.movements), "who waits is answered"
        for name in "xyz":
            self.cache.pins.end(name)
        self.cache.check_invariants([])
        for tree in (self.cache.device, *self.cache.colder):
            assert tree.ledger.num_held == 0


TestTiers = TiersMachine.TestCase
