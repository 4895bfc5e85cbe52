"""What moves between tiers, when, and what it holds; told in the order of a conversation's life."""

from collections.abc import Sequence

import pytest

from prefix_cache.assembly import CacheSizes, assemble
from prefix_cache.hashing import block_name, root_name
from prefix_cache.lease import PLAIN, Lease, Retention
from prefix_cache.node import SHARED
from prefix_cache.pins import PinsFull
from prefix_cache.plan import BlockId, BlockRecord, Tier, Transfer
from prefix_cache.quota import Quota, account_of
from prefix_cache.swap import SwapMode, SwapRates
from prefix_cache.tokens import pack

ANN, BEN = b"a" * 16, b"b" * 16
STORED = Retention(persists=True)
FINGERPRINT = b"a model"


class House:
    """A cache of blocks of four tokens, and whoever carries out its transfers."""

    def __init__(
        self,
        *,
        device: int = 12,
        host: int = 0,
        disk: int = 0,
        swap: SwapMode = "always",
        disk_for_all: bool = False,
        park_after: float | None = None,
        records: dict[BlockId, BlockRecord] | None = None,
        max_request_tokens: int = 0,
        quotas: dict[bytes, Quota] | None = None,
    ) -> None:
        self.cache, self.ages = assemble(
            CacheSizes(
                num_blocks=device,
                block_size=4,
                num_host_blocks=host,
                num_disk_blocks=disk,
                max_request_tokens=max_request_tokens,
                quotas={account_of(name): quota for name, quota in (quotas or {}).items()},
            ),
            rates=SwapRates(1.0, {}, mode=swap),
            fingerprint=FINGERPRINT,
            records=records or {},
            disk_for_all=disk_for_all,
            park_after=park_after,
        )
        self.records = dict(records or {})
        self.now = 0.0

    def acquire(
        self, tokens: Sequence[int], *, namespace: bytes = ANN, retention: Retention = PLAIN
    ) -> Lease | None:
        self.now += 1.0
        return self.cache.acquire(
            namespace,
            pack(tokens),
            max_new=len(tokens),
            num_required=len(tokens),
            now=self.now,
            retention=retention,
        )

    def compute(
        self, tokens: Sequence[int], *, namespace: bytes = ANN, retention: Retention = PLAIN
    ) -> Lease:
        """Lease, compute and commit all tokens."""
        lease = self.acquire(tokens, namespace=namespace, retention=retention)
        assert lease is not None
        assert not self.cache.is_loading(lease)
        self.cache.take_copies()
        self.cache.finish_copies()
        self.cache.commit(lease, pack(tokens[lease.num_committed :]))
        return lease

    def say(self, tokens: Sequence[int], *, namespace: bytes = ANN, retention: Retention = PLAIN) -> None:
        """A sequence's whole life."""
        self.release(self.compute(tokens, namespace=namespace, retention=retention))

    def release(self, lease: Lease) -> None:
        self.now += 1.0
        self.cache.release(lease, self.now)

    def take(self) -> list[Transfer]:
        return self.cache.take_transfers(1, self.now)

    def finish(self, transfer: Transfer, num_done: int | None = None, *, is_damaged: bool = False) -> None:
        num_done = len(transfer.copies) if num_done is None else num_done
        for copy, record in zip(transfer.copies[:num_done], transfer.records, strict=False):
            if transfer.target is Tier.DISK:
                self.records[copy.target_block] = record
        self.cache.finish(transfer, num_done, self.now, is_damaged=is_damaged)

    def settle(self) -> None:
        """Carry out all that waits."""
        while taken := self.take():
            for transfer in taken:
                self.finish(transfer)

    def on(self, tier: Tier, tokens: Sequence[int], namespace: bytes = ANN) -> int:
        """Leading tokens that lie on a tier."""
        tree = self.cache.tree(tier)
        assert tree is not None
        return tree.match_length(namespace, pack(tokens))

    def crowd(self) -> None:
        """A stranger fills the device and leaves, so that all that rested there is evicted."""
        num_tokens = self.cache.num_blocks * 4
        self.say(range(1000, 1000 + num_tokens), namespace=BEN)
        self.cache.forget(BEN, pack(range(1000, 1000 + num_tokens)))

    def restarted(self, **changes: object) -> "House":
        """Another process over the same disk."""
        disk = self.cache.tree(Tier.DISK)
        assert disk is not None
        return House(disk=disk.num_blocks, records=self.records, **changes)


TEN = list(range(10))


def test_what_was_written_to_the_host_is_promoted_into_the_lease() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()
    house.crowd()
    assert house.on(Tier.DEVICE, TEN) == 0

    lease = house.acquire([*TEN, 50, 51])

    assert lease is not None
    assert house.cache.is_loading(lease)
    (transfer,) = house.take()
    assert (transfer.source, transfer.target) == (Tier.HOST, Tier.DEVICE)
    assert [copy.target_block for copy in transfer.copies] == lease.blocks[:3]
    assert [copy.num_tokens for copy in transfer.copies] == [4, 4, 2]
    house.finish(transfer)
    assert not house.cache.is_loading(lease)
    assert lease.num_matched == 10
    assert house.on(Tier.DEVICE, TEN) == 10


def test_a_colder_tier_that_has_more_of_a_block_saves_the_copy_within_the_device() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()
    house.cache.device.drop(ANN, pack(TEN))
    house.cache.prefetch(ANN, pack(TEN[:6]), house.now)
    house.settle()

    lease = house.acquire([*TEN, 50])

    assert lease is not None
    assert house.cache.take_copies() == ()
    (transfer,) = house.take()
    assert [copy.num_tokens for copy in transfer.copies] == [4, 2]
    house.finish(transfer)
    assert lease.num_matched == 10


def test_one_prompt_may_come_from_host_and_disk() -> None:
    house = House(host=2, disk=8)
    house.say(range(16), retention=STORED)
    house.settle()
    assert (house.on(Tier.HOST, range(16)), house.on(Tier.DISK, range(16))) == (0, 16)
    house.cache.device.drop(ANN, pack(range(16)))
    house.cache.prefetch(ANN, pack(range(8)), house.now)
    house.settle()
    house.cache.device.drop(ANN, pack(range(8)))

    lease = house.acquire(range(17))

    assert lease is not None
    sources = []
    while taken := house.take():
        sources += [(transfer.source, len(transfer.copies)) for transfer in taken]
        house.finish(taken[0])
    assert sources == [(Tier.HOST, 2), (Tier.DISK, 2)]
    assert lease.num_matched == 16
    assert lease.explanation is not None
    assert lease.explanation.found == {Tier.DEVICE: 0, Tier.HOST: 8, Tier.DISK: 8}


def test_of_a_block_that_two_tiers_have_the_fuller_one_is_taken() -> None:
    house = House(host=8, disk=8)
    house.say(TEN, retention=STORED)
    house.settle()
    house.cache.device.drop(ANN, pack(TEN))
    house.cache.tree(Tier.HOST).drop(ANN, pack(TEN))  # type: ignore[union-attr]
    house.cache.prefetch(ANN, pack(TEN[:6]), house.now)
    house.settle()
    house.cache.device.drop(ANN, pack(TEN[:6]))

    house.acquire([*TEN, 50])

    parts = []
    while taken := house.take():
        parts += [(each.source, [copy.num_tokens for copy in each.copies]) for each in taken]
        house.finish(taken[0])
    assert parts == [(Tier.HOST, [4]), (Tier.DISK, [4, 2])]


def test_what_a_colder_tier_brings_counts_only_without_a_gap() -> None:
    house = House(host=2, disk=8)
    house.say(range(16), retention=STORED)
    house.settle()
    house.cache.device.drop(ANN, pack(range(16)))
    house.cache.prefetch(ANN, pack(range(8)), house.now)
    house.settle()
    house.cache.device.drop(ANN, pack(range(8)))
    lease = house.acquire(range(17))
    assert lease is not None

    (from_host,) = house.take()
    house.finish(from_host, 1)
    (from_disk,) = house.take()
    house.finish(from_disk)

    assert lease.num_matched == 4


def test_one_write_is_out_at_a_time() -> None:
    house = House(host=8)
    house.say(TEN)
    house.say(range(20, 30))

    assert len(house.cache.take_transfers(5, house.now)) == 1
    assert house.cache.take_transfers(5, house.now) == []


def test_no_write_begins_while_one_that_runs_lacks_blocks() -> None:
    house = House(device=8, host=8)
    house.say(TEN)
    first = house.compute(range(20, 32))
    second = house.compute(range(40, 48), namespace=BEN)
    assert not house.cache.grow(first, 40)

    assert house.cache.grow(second, 8)
    assert house.take() == []
    house.release(first)
    assert len(house.take()) == 1


def test_a_promotion_that_nobody_has_taken_is_cancelled_with_its_lease() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()
    house.crowd()
    lease = house.acquire([*TEN, 50])
    assert lease is not None

    house.release(lease)

    assert house.take() == []
    assert house.cache.device.ledger.num_held == 0


def test_a_promotion_that_runs_holds_both_ends_and_is_kept_when_its_lease_has_gone() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()
    house.crowd()
    lease = house.acquire([*TEN, 50])
    assert lease is not None
    (transfer,) = house.take()

    house.release(lease)

    host = house.cache.tree(Tier.HOST)
    assert host is not None
    assert house.cache.device.ledger.num_held == 3
    assert host.ledger.num_held == 3
    house.finish(transfer)
    assert house.cache.device.ledger.num_held == host.ledger.num_held == 0
    assert house.on(Tier.DEVICE, TEN) == 10


def test_a_promotion_that_fails_leaves_what_had_arrived() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()
    house.crowd()
    lease = house.acquire([*TEN, 50])
    assert lease is not None
    (transfer,) = house.take()

    house.finish(transfer, 1)

    assert lease.num_matched == lease.num_committed == 4
    assert lease.explanation is not None
    assert lease.explanation.found[Tier.HOST] == 4
    assert house.on(Tier.HOST, TEN) == 10


def test_a_damaged_block_is_removed_with_all_that_hangs_below() -> None:
    house = House(disk=8)
    house.say(TEN, retention=STORED)
    house.settle()
    house.crowd()
    lease = house.acquire([*TEN, 50])
    assert lease is not None
    (transfer,) = house.take()

    house.finish(transfer, 1, is_damaged=True)

    assert lease.num_matched == 4
    assert house.on(Tier.DISK, TEN) == 4
    assert len(house.cache.take_erased()) == 2
    assert house.cache.counters.num_damaged_blocks == 1


def test_a_damaged_block_that_another_reads_stays_until_the_next_reader() -> None:
    house = House(disk=8)
    house.say(TEN, retention=STORED)
    house.settle()
    house.crowd()
    leases = [house.acquire([*TEN, 50]), house.acquire([*TEN, 60])]
    assert None not in leases
    first, second = house.cache.take_transfers(2, house.now)

    house.finish(first, 1, is_damaged=True)
    assert house.on(Tier.DISK, TEN) == 10
    house.finish(second, 1, is_damaged=True)

    assert house.on(Tier.DISK, TEN) == 4


def test_only_what_was_stored_goes_to_the_disk() -> None:
    house = House(disk=8)

    house.say(TEN)
    house.say([90, *TEN], retention=STORED)
    house.settle()

    assert house.on(Tier.DISK, TEN) == 0
    assert house.on(Tier.DISK, [90, *TEN]) == 11


def test_an_operator_may_let_everything_go_to_the_disk() -> None:
    house = House(disk=8, disk_for_all=True)

    house.say(TEN)
    house.settle()

    assert house.on(Tier.DISK, TEN) == 10


def test_long_prefixes_are_written_in_chunks_that_hold_nothing_between_them() -> None:
    house = House(device=80, host=80)
    house.say(range(70 * 4))

    sizes = []
    while taken := house.take():
        sizes.append(len(taken[0].copies))
        house.finish(taken[0])
        assert house.cache.device.ledger.num_held == 0

    assert sizes == [32, 32, 6]


def test_a_longer_turn_writes_only_what_is_new() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()

    house.say([*TEN, 50, 51, 52, 53])
    (transfer,) = house.take()
    house.finish(transfer)

    assert [copy.num_tokens for copy in transfer.copies] == [4, 2]
    host = house.cache.tree(Tier.HOST)
    assert host is not None
    assert host.ledger.num_cached == 4


def test_parking_answers_when_all_is_written_and_has_left_the_device() -> None:
    house = House(disk=8)
    house.say(TEN)

    movement = house.cache.park(ANN, pack([*TEN, 77]))

    assert not movement.is_done
    house.settle()
    assert movement.is_done
    assert movement.message is None
    assert movement.num_parked_tokens == 10
    assert movement.num_moved_blocks == 3
    assert (house.on(Tier.DEVICE, TEN), house.on(Tier.DISK, TEN)) == (0, 10)


@pytest.mark.parametrize("is_out", [True, False])
def test_parking_counts_what_was_being_written_anyway(is_out: bool) -> None:
    house = House(disk=8)
    house.say(TEN, retention=STORED)
    taken = house.take() if is_out else []

    movement = house.cache.park(ANN, pack(TEN))
    for transfer in taken:
        house.finish(transfer)
    house.settle()

    assert movement.is_done
    assert movement.num_moved_blocks == 3


def test_parking_leaves_on_the_device_what_others_hold_or_hang_from() -> None:
    house = House(disk=8)
    house.say(TEN)
    other = house.compute([0, 1, 2, 3, 60, 61])

    house.cache.park(ANN, pack(TEN))
    house.settle()

    assert house.on(Tier.DEVICE, TEN) == 4
    assert house.on(Tier.DISK, TEN) == 10
    house.release(other)


def test_parking_without_a_colder_tier_says_so() -> None:
    movement = House().cache.park(ANN, pack(TEN))

    assert movement.is_done
    assert movement.message == "there is no colder tier"


def test_parking_on_a_disk_that_takes_nothing_more_says_so_and_drops_nothing() -> None:
    house = House(disk=8)
    house.say(TEN)
    waiting = house.cache.park(ANN, pack(TEN))

    house.cache.refuse_writes(Tier.DISK, "full")
    refused = house.cache.park(ANN, pack(TEN))

    assert waiting.is_done
    assert refused.is_done
    assert waiting.message == refused.message == "full"
    assert house.take() == []
    assert house.on(Tier.DEVICE, TEN) == 10


def test_a_write_that_fails_ends_the_parking_and_drops_nothing() -> None:
    house = House(disk=8)
    house.say(TEN)
    movement = house.cache.park(ANN, pack(TEN))
    (transfer,) = house.take()

    house.finish(transfer, 1)

    assert movement.is_done
    assert movement.message is not None
    assert (house.on(Tier.DEVICE, TEN), house.on(Tier.DISK, TEN)) == (10, 4)


def test_what_rests_long_enough_is_parked() -> None:
    house = House(host=8, park_after=10.0)
    house.say(TEN)

    house.cache.tend(house.now + 9.0)
    house.settle()
    is_still_there = house.on(Tier.DEVICE, TEN) == 10
    house.cache.tend(house.now + 10.0)
    house.settle()

    assert is_still_there
    assert (house.on(Tier.DEVICE, TEN), house.on(Tier.HOST, TEN)) == (0, 10)
    assert house.cache.counters.num_parked == 1


def test_what_was_used_again_rests_anew() -> None:
    house = House(host=8, park_after=10.0)
    house.say(TEN)
    house.now = 9.0
    house.say(TEN)

    house.cache.tend(15.0)
    house.settle()

    assert house.on(Tier.DEVICE, TEN) == 10


def test_what_others_used_meanwhile_stays_when_the_rest_is_parked() -> None:
    house = House(host=12, park_after=10.0)
    house.say(TEN)
    house.now = 8.0
    house.say([0, 1, 2, 3, 60, 61])

    house.cache.tend(14.0)
    house.cache.forget(ANN, pack([0, 1, 2, 3, 60, 61]), 4)
    house.settle()

    assert house.on(Tier.DEVICE, TEN) == 4


def test_what_could_not_be_written_whole_does_not_leave() -> None:
    house = House(disk=2)
    house.say(TEN)

    movement = house.cache.park(ANN, pack(TEN))
    house.settle()

    assert movement.is_done
    assert movement.message is not None
    assert house.on(Tier.DEVICE, TEN) == 10


def test_what_no_tier_may_hold_is_not_parked() -> None:
    house = House(disk=8, park_after=10.0)
    house.say(TEN)

    house.cache.tend(house.now + 100.0)
    house.settle()

    assert house.on(Tier.DEVICE, TEN) == 10


def test_a_prefetch_brings_a_prefix_back_before_anybody_asks() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()
    house.crowd()

    movement = house.cache.prefetch(ANN, pack([*TEN, 77]), house.now)
    house.settle()

    assert movement.is_done
    assert movement.found[Tier.HOST] == 10
    assert movement.num_to_compute == 1
    assert movement.num_moved_blocks == 3
    assert house.on(Tier.DEVICE, TEN) == 10
    assert house.cache.device.ledger.num_held == 0


def test_a_prefetch_for_which_there_is_no_room_says_so() -> None:
    house = House(device=4, host=8)
    house.say(TEN)
    house.settle()
    lease = house.compute(range(200, 216), namespace=BEN)

    movement = house.cache.prefetch(ANN, pack(TEN), house.now)

    assert movement.is_done
    assert movement.message == "the device has no room now"
    house.release(lease)


def test_swapping_can_be_forbidden_and_is_counted() -> None:
    house = House(host=8, swap="never")
    house.say(TEN)
    house.settle()
    house.crowd()

    lease = house.acquire([*TEN, 50])

    assert lease is not None
    assert not house.cache.is_loading(lease)
    assert lease.num_matched == 0
    assert house.cache.counters.num_recomputed_tokens == 10
    assert lease.explanation is not None
    assert lease.explanation.reason == "recomputed"


@pytest.mark.parametrize(("prefill_rate", "cut"), [(1e6, 0), (10.0, 2), (5_000.0, 1)])
def test_the_cut_follows_the_rates(prefill_rate: float, cut: int) -> None:
    rates = SwapRates(
        100.0,
        {(Tier.HOST, Tier.DEVICE): 1e9, (Tier.DISK, Tier.DEVICE): 1e5},
        prefill_rate=prefill_rate,
    )

    assert rates.choose_cut([(Tier.HOST, 1000), (Tier.DISK, 1000)]) == cut


def test_rates_are_kept_current() -> None:
    rates = SwapRates(100.0, {(Tier.HOST, Tier.DEVICE): 1e9}, prefill_rate=1000.0)

    for _ in range(50):
        rates.note_transfer(Tier.HOST, Tier.DEVICE, 1_000_000, 1.0)
        rates.note_prefill(500, 1.0)

    assert rates.rates[Tier.HOST, Tier.DEVICE] == pytest.approx(1e6, rel=0.05)
    assert rates.prefill_rate == pytest.approx(500.0, rel=0.05)


def test_another_process_finds_on_the_disk_what_this_one_wrote() -> None:
    house = House(disk=12)
    house.say(TEN, retention=STORED)
    house.say([0, 1, 2, 3, 60, 61, 62, 63, 64], retention=STORED)
    house.say(TEN, namespace=BEN, retention=STORED)
    house.settle()

    reborn = house.restarted()

    assert reborn.on(Tier.DISK, TEN) == 10
    assert reborn.on(Tier.DISK, [0, 1, 2, 3, 60, 61, 62, 63, 64]) == 9
    assert reborn.on(Tier.DISK, TEN, BEN) == 10
    assert reborn.on(Tier.DISK, TEN, SHARED) == 0
    assert reborn.cache.take_erased() == []
    lease = reborn.acquire([*TEN, 50])
    assert lease is not None
    reborn.settle()
    assert lease.num_matched == 10


def test_records_without_their_parents_are_erased_at_the_start() -> None:
    house = House(disk=8)
    house.say(TEN, retention=STORED)
    house.settle()
    first = min(house.records)

    del house.records[first]
    reborn = house.restarted()

    assert reborn.on(Tier.DISK, TEN) == 0
    assert sorted(reborn.cache.take_erased()) == sorted(house.records)


def test_a_record_whose_name_does_not_follow_from_its_tokens_is_erased_at_the_start() -> None:
    house = House(disk=8)
    house.say(TEN, retention=STORED)
    house.settle()
    (last,) = (block for block, record in house.records.items() if len(record.tokens) == 8)
    record = house.records[last]

    house.records[last] = BlockRecord(record.namespace, record.parent, record.name, pack([8, 8]))
    reborn = house.restarted()

    assert reborn.on(Tier.DISK, TEN) == 8
    assert reborn.cache.take_erased() == [last]


def test_runs_of_different_namespaces_are_never_joined() -> None:
    house = House(disk=8)
    root = root_name(FINGERPRINT)
    upper = BlockRecord(SHARED, root, block_name(root, SHARED, pack(range(4))), pack(range(4)))
    name = block_name(upper.name, ANN, pack(range(4, 8)))
    lower = BlockRecord(ANN, upper.name, name, pack(range(4, 8)))
    house.records = {BlockId(0): upper, BlockId(1): lower}

    reborn = house.restarted()

    assert reborn.on(Tier.DISK, range(8)) == 8
    assert reborn.on(Tier.DISK, range(8), BEN) == 4


def test_the_shorter_of_two_versions_of_a_tail_is_erased_at_the_start() -> None:
    house = House(disk=8)
    house.say(TEN, retention=STORED)
    house.settle()
    house.say([*TEN, 50], retention=STORED)
    house.settle()
    assert len(house.records) == 4

    reborn = house.restarted()

    assert reborn.on(Tier.DISK, [*TEN, 50]) == 11
    assert len(reborn.cache.take_erased()) == 1


def test_another_models_records_are_of_no_use() -> None:
    house = House(disk=8)
    house.say(TEN, retention=STORED)
    house.settle()
    cache, _ = assemble(
        CacheSizes(num_blocks=12, block_size=4, num_disk_blocks=8),
        fingerprint=b"another model",
        records=house.records,
    )

    assert cache.tree(Tier.DISK).match_length(ANN, pack(TEN)) == 0  # type: ignore[union-attr]
    assert len(cache.take_erased()) == 3


def test_forgetting_frees_in_every_tier_what_is_nobody_elses() -> None:
    house = House(host=8, disk=8)
    house.say(TEN, retention=STORED)
    house.say([0, 1, 2, 3, 60, 61], retention=STORED)
    house.settle()

    freed = house.cache.forget(ANN, pack([*TEN, 99]))

    assert freed == {Tier.DEVICE: 2, Tier.HOST: 2, Tier.DISK: 2}
    assert len(house.cache.take_erased()) == 2
    for tier in Tier:
        assert house.on(tier, TEN) == 4
        assert house.on(tier, [0, 1, 2, 3, 60, 61]) == 6


def test_forgetting_keeps_the_beginning_that_it_is_told_to_keep() -> None:
    house = House()
    house.say(range(20))

    house.cache.forget(ANN, pack(range(20)), num_kept=6)

    assert house.on(Tier.DEVICE, range(20)) == 6


def test_what_is_forgotten_while_it_is_written_goes_when_the_copy_has_ended() -> None:
    house = House(device=80, disk=80)
    house.say(range(70 * 4), retention=STORED)
    (transfer,) = house.take()

    house.cache.forget(ANN, pack(range(70 * 4)))
    house.finish(transfer)
    house.cache.tend(house.now)

    assert house.take() == []
    for tier in (Tier.DEVICE, Tier.DISK):
        assert house.on(tier, range(70 * 4)) == 0
    assert len(house.cache.take_erased()) == 32


def test_what_is_shared_no_longer_goes_with_all_that_hangs_from_it() -> None:
    house = House(host=12)
    house.say(range(8), namespace=SHARED)
    house.say(TEN)
    house.say([*range(8), 60, 61], namespace=BEN)
    house.settle()
    running = house.compute([*range(8), 70, 71], namespace=BEN)

    house.cache.forget(SHARED, pack(range(8)))
    house.settle()

    assert house.on(Tier.DEVICE, TEN) == house.on(Tier.HOST, TEN) == 0
    assert house.cache.device.ledger.num_held > 0
    house.release(running)
    house.cache.tend(house.now)
    house.settle()
    for tier in (Tier.DEVICE, Tier.HOST):
        assert house.on(tier, TEN) == 0
    assert house.cache.device.ledger.num_free == 12


def test_a_shared_prefix_within_a_longer_pinned_one_stays() -> None:
    house = House()
    house.say(range(8), namespace=SHARED)
    house.say(range(12), namespace=SHARED)
    house.cache.pins.set("long", SHARED, pack(range(12)), None)

    house.cache.forget(SHARED, pack(range(8)))
    house.cache.tend(house.now)

    assert house.on(Tier.DEVICE, range(12), BEN) == 12


def test_forgetting_takes_what_was_said_after_it_too() -> None:
    house = House(disk=12)
    house.say(TEN, retention=STORED)
    house.say([*TEN, 50, 51, 52], retention=STORED)  # a turn whose client has left
    house.settle()

    house.cache.forget(ANN, pack(TEN), num_kept=4)
    house.settle()

    assert house.on(Tier.DEVICE, TEN) == house.on(Tier.DISK, TEN) == 4


def test_what_is_forgotten_of_a_block_is_gone_though_the_block_stays() -> None:
    """Else it would stand in the way when the rest is forgotten."""
    house = House(disk=12)
    house.say(TEN, retention=STORED)
    house.settle()

    house.cache.forget(ANN, pack([*TEN, 99]), num_kept=9)

    assert house.on(Tier.DEVICE, TEN) == 9
    assert house.on(Tier.DISK, TEN) == 8
    house.say([*TEN[:9], 50, 51], retention=STORED)
    house.settle()
    house.cache.forget(ANN, pack([*TEN[:9], 50, 51]))
    for tree in (house.cache.device, *house.cache.colder):
        assert tree.ledger.num_free == tree.num_blocks


@pytest.mark.parametrize("is_out", [True, False])
def test_what_is_kept_of_a_forgotten_prefix_is_written_all_the_same(is_out: bool) -> None:
    house = House(disk=12)
    house.say(TEN, retention=STORED)
    taken = house.take() if is_out else []

    house.cache.forget(ANN, pack(TEN), num_kept=9)
    for transfer in taken:
        house.finish(transfer)
    house.settle()

    assert house.on(Tier.DISK, TEN) == 9


def test_forgetting_leaves_what_parts_before_the_end() -> None:
    house = House(disk=12)
    house.say(TEN, retention=STORED)
    house.say([*TEN[:5], 60, 61, 62, 63], retention=STORED)
    house.settle()

    house.cache.forget(ANN, pack(TEN))

    assert house.on(Tier.DISK, [*TEN[:5], 60, 61, 62, 63]) == 9
    assert house.on(Tier.DISK, TEN) == 5


def test_what_is_forgotten_while_it_loads_goes_when_it_has_arrived() -> None:
    house = House(host=12)
    house.say(TEN)
    house.settle()
    house.crowd()
    lease = house.acquire([*TEN, 50])
    assert lease is not None
    (transfer,) = house.take()
    house.release(lease)

    house.cache.forget(ANN, pack(TEN))
    house.finish(transfer)
    house.cache.tend(house.now)
    house.settle()

    for tree in (house.cache.device, *house.cache.colder):
        assert tree.ledger.num_free == tree.num_blocks


def test_every_block_that_leaves_the_disks_tree_has_its_record_erased() -> None:
    house = House(device=40, disk=4)
    house.say(TEN, retention=STORED)
    house.settle()
    house.say([*TEN, 50], retention=STORED)
    house.settle()
    erased = house.cache.take_erased()
    for block in erased:
        del house.records[block]
    assert len(erased) == 1

    house.say(range(20, 28), retention=STORED)
    house.settle()

    live = {block for node in house.cache.colder[0].nodes() for block in node.blocks}
    assert set(house.records) - set(house.cache.take_erased()) == live


def test_a_conversation_under_a_shared_prefix_comes_back_from_the_disk() -> None:
    house = House(device=20, disk=20)
    house.say(range(8), namespace=SHARED)
    house.cache.pins.set("shared", SHARED, pack(range(8)), None)
    house.say(range(14), retention=STORED)
    house.settle()
    assert {record.namespace for record in house.records.values()} == {ANN}

    reborn = house.restarted()

    lease = reborn.acquire([*range(14), 50])
    assert lease is not None
    (transfer,) = reborn.take()
    assert all(
        house.records[copy.source_block] == record
        for copy, record in zip(transfer.copies, transfer.records, strict=True)
    )
    reborn.finish(transfer)
    assert lease.num_matched == 14
    assert reborn.on(Tier.DISK, range(14), BEN) == 0


def test_shared_prefixes_are_not_written_to_the_disk() -> None:
    house = House(disk=8, disk_for_all=True)

    house.say(range(8), namespace=SHARED)
    house.settle()

    assert house.records == {}


def test_what_another_shared_prefix_needs_stays_with_all_that_hangs_from_it() -> None:
    house = House(device=20, host=20)
    for name, tokens in (("one", [0, 1, 2, 3, 10, 11]), ("two", [0, 1, 2, 3, 20, 21])):
        house.say(tokens, namespace=SHARED)
        house.cache.pins.set(name, SHARED, pack(tokens), None)
    house.say([0, 1, 2, 3, 10, 11, 12, 13, 14])
    house.say([0, 1, 2, 3, 20, 21, 22, 23, 24])
    house.settle()

    house.cache.pins.end("two")
    house.cache.forget(SHARED, pack([0, 1, 2, 3, 20, 21]))

    for tier in (Tier.DEVICE, Tier.HOST):
        assert house.on(tier, [0, 1, 2, 3, 10, 11, 12, 13, 14]) == 9
        assert house.on(tier, [0, 1, 2, 3, 20, 21], BEN) == 4


def test_a_pin_that_ends_inside_a_block_pins_that_block_and_no_more() -> None:
    house = House()
    house.say(range(24))

    hold = house.cache.pins.set("p", ANN, pack(range(6)), None)

    assert hold.num_tokens == 6
    assert house.cache.device.ledger.num_pinned == len(hold.blocks) == 2


def test_pins_leave_room_below_their_accounts_ceiling() -> None:
    house = House(device=40, max_request_tokens=16, quotas={ANN: Quota(ceiling_blocks=8)})
    house.say(range(20))

    with pytest.raises(PinsFull, match="at most 4 may be"):
        house.cache.pins.set("p", ANN, pack(range(20)), None)
    house.cache.pins.set("p", ANN, pack(range(16)), None)

    assert house.acquire(range(100, 116)) is not None


def test_a_side_request_leaves_no_trace() -> None:
    house = House(host=8)
    house.say(TEN)
    house.settle()
    before = [(node.tokens[:], node.last_used, node.num_uses) for node in house.cache.device.nodes()]

    house.say([*TEN, 50, 51], retention=Retention(is_side=True))

    assert [(node.tokens[:], node.last_used, node.num_uses) for node in house.cache.device.nodes()] == before
    assert house.take() == []
    assert house.cache.device.ledger.num_held == 0


def test_what_a_side_request_computes_is_not_written_even_if_it_is_to_be_parked() -> None:
    """It is on the device for as long as the request runs, and nowhere else ever."""
    house = House(host=8)
    house.say(range(4))
    house.settle()
    side = house.compute([*range(4), *range(50, 59)], retention=Retention(is_side=True))

    movement = house.cache.park(ANN, pack([*range(4), *range(50, 59)]))

    assert house.take() == [], "all that stays is there already"
    assert movement.is_done
    assert movement.num_parked_tokens == 4
    assert house.on(Tier.HOST, [*range(4), *range(50, 59)]) == 4
    house.release(side)


def test_what_was_to_be_written_and_is_there_only_in_passing_is_not_written() -> None:
    """It had to leave before it was written, and a side request has computed the same since."""
    house = House(device=4, host=8)
    house.say(range(8))
    house.say(range(100, 116))
    assert house.on(Tier.DEVICE, range(8)) == 0
    side = house.compute(range(8), retention=Retention(is_side=True))

    house.settle()

    assert house.on(Tier.DEVICE, range(8)) == 8
    assert house.on(Tier.HOST, range(8)) == 0
    house.release(side)


def test_a_match_in_the_middle_of_a_run_holds_one_block_of_what_comes_after_it() -> None:
    house = House(device=20)
    house.say(range(40))

    house.acquire([*range(6), 99])

    # The first block, the second as the copy's source, and the copy.
    assert house.cache.device.ledger.num_held == 3


def test_a_run_that_merely_begins_like_a_prompt_is_not_used_by_it() -> None:
    house = House(device=4)
    house.say(range(4))
    house.say(range(20, 24))

    house.say([0, 1, 99, 98])  # its first two tokens are those of the oldest run

    house.say(range(60, 68))
    assert house.on(Tier.DEVICE, range(20, 24)) == 4


def test_low_priorities_are_evicted_first() -> None:
    house = House(device=6)
    house.say(range(8), retention=Retention(priority=1))
    house.say(range(20, 28), retention=Retention(priority=-1))
    house.say(range(40, 48))

    house.say(range(60, 64))

    assert house.on(Tier.DEVICE, range(8)) == 8
    assert house.on(Tier.DEVICE, range(20, 28)) < 8
    assert house.on(Tier.DEVICE, range(40, 48)) == 8


def test_a_pin_keeps_until_its_time_is_over() -> None:
    house = House()
    house.say(TEN)
    hold = house.cache.pins.set("p", ANN, pack([*TEN, 99]), until=house.now + 100.0)

    house.say(range(1000, 1036), namespace=BEN)

    assert hold.num_tokens == 10
    assert house.on(Tier.DEVICE, TEN) == 10
    assert house.cache.device.ledger.num_pinned == 3
    house.cache.tend(house.now + 100.0)
    assert house.cache.device.ledger.num_pinned == 0
    house.crowd()
    assert house.on(Tier.DEVICE, TEN) == 0


def test_a_pin_of_the_same_name_takes_the_place_of_the_first() -> None:
    house = House()
    house.say(TEN)
    house.say(range(20, 28))

    house.cache.pins.set("p", ANN, pack(TEN), None)
    house.cache.pins.set("p", ANN, pack(range(20, 28)), None)

    assert house.cache.device.ledger.num_pinned == 2
    house.cache.pins.end("p")
    house.cache.pins.end("p")
    assert house.cache.device.ledger.num_held == 0


def test_pins_leave_room_for_one_request() -> None:
    house = House(max_request_tokens=36)
    house.say(TEN)
    house.say(range(20, 28))
    house.cache.pins.set("p", ANN, pack(TEN), None)

    with pytest.raises(PinsFull, match="at most 3 may be"):
        house.cache.pins.set("q", ANN, pack(range(20, 28)), None)

    assert house.cache.device.ledger.num_pinned == 3


def test_a_floor_is_kept_from_others() -> None:
    house = House(quotas={ANN: Quota(floor_blocks=2)})
    house.say(TEN)

    assert house.acquire(range(1000, 1044), namespace=BEN) is None
    lease = house.acquire(range(1000, 1040), namespace=BEN)

    assert lease is not None
    assert house.on(Tier.DEVICE, TEN) == 8
    house.release(lease)


def test_others_take_of_an_account_only_what_is_above_its_floor() -> None:
    house = House(quotas={ANN: Quota(floor_blocks=2)})
    house.say(range(16))
    house.say(range(1000, 1024), namespace=BEN)

    house.say(range(2000, 2032), namespace=BEN)

    assert house.on(Tier.DEVICE, range(16)) == 8


def test_a_floor_gives_way_where_a_run_that_all_share_hangs_above_it() -> None:
    house = House(device=6, quotas={ANN: Quota(floor_blocks=4)})
    house.say(range(8), namespace=SHARED)
    house.say(range(16))

    lease = house.acquire(range(100, 116), namespace=BEN)

    assert lease is not None
    house.release(lease)


def test_a_floor_does_not_bind_its_own_account() -> None:
    house = House(quotas={ANN: Quota(floor_blocks=12)})
    house.say(TEN)

    house.say(range(1000, 1048))

    assert house.on(Tier.DEVICE, TEN) == 0


def test_a_ceiling_makes_an_account_evict_its_own() -> None:
    house = House(quotas={ANN: Quota(ceiling_blocks=4)})
    house.say(range(1000, 1016), namespace=BEN)
    house.say(TEN)

    house.say(range(20, 32))

    assert house.on(Tier.DEVICE, TEN) == 4
    assert house.on(Tier.DEVICE, range(20, 32)) == 12
    assert house.on(Tier.DEVICE, range(1000, 1016), BEN) == 16
    assert house.acquire(range(50, 70)) is None


def test_floors_that_leave_no_room_for_a_request_are_refused() -> None:
    with pytest.raises(ValueError, match="the floors of all tenants take 8 blocks of 12"):
        House(quotas={ANN: Quota(floor_blocks=8)}, max_request_tokens=20)


@pytest.mark.parametrize(
    ("said", "asked", "reason", "parted_at"),
    [
        ([], TEN, "empty", 0),
        ([TEN], TEN, "none", 9),
        ([TEN], [*TEN, 50], "none", 10),
        ([TEN], [*TEN, 50, 51], "new", 10),
        ([TEN], [0, 1, 2, 3, 4, 5, 77, 78], "parted", 6),
        ([TEN], [0, 1, 2, 3, 77, 78], "parted", 4),
        ([TEN], [77, 78], "empty", 0),
    ],
)
def test_why_did_it_miss(said: list[list[int]], asked: list[int], reason: str, parted_at: int) -> None:
    house = House()
    for tokens in said:
        house.say(tokens)

    lease = house.acquire(asked)

    assert lease is not None
    assert lease.explanation is not None
    assert (lease.explanation.reason, lease.explanation.parted_at) == (reason, parted_at)
    house.cache.take_copies()
    house.cache.finish_copies()
    house.release(lease)


def test_what_had_to_make_room_is_told_apart_from_what_was_never_there() -> None:
    house = House()
    house.say(TEN)
    house.crowd()

    lease = house.acquire([*TEN, 50])

    assert lease is not None
    assert lease.explanation is not None
    assert (lease.explanation.reason, lease.explanation.parted_at) == ("evicted", 0)


def test_what_was_forgotten_is_not_remembered_either() -> None:
    house = House()
    house.say(TEN)
    house.say([*TEN, 50, 51, 52])
    house.cache.forget(ANN, pack([*TEN, 50, 51, 52]))

    lease = house.acquire([*TEN, 60])

    assert lease is not None
    assert lease.explanation is not None
    assert lease.explanation.reason == "empty"


def test_a_strangers_cache_is_no_reason() -> None:
    house = House()
    house.say(TEN, namespace=BEN)

    lease = house.acquire([*TEN, 50])

    assert lease is not None
    assert lease.explanation is not None
    assert (lease.explanation.reason, lease.explanation.parted_at) == ("empty", 0)


def test_use_tells_private_from_shared_blocks() -> None:
    house = House()
    house.say(TEN)
    house.say([0, 1, 2, 3, 60, 61])

    use = house.cache.device.use_of(ANN, pack(TEN))

    assert (use.num_tokens, use.num_blocks, use.num_shared_blocks) == (10, 3, 1)
    assert house.cache.device.use_of(ANN, pack(TEN[:6])).num_shared_blocks == 2


def test_events_are_told_to_who_listens() -> None:
    house = House(device=4, host=8)
    house.say(TEN)
    assert house.cache.events.take() == ([], 0)
    house.cache.events.is_on = True

    house.settle()
    house.say(range(20, 28))
    house.acquire([*TEN, 50])
    house.settle()

    events, num_lost = house.cache.events.take()
    assert num_lost == 0
    told = [(event.kind, event.tier, event.start, len(event.tokens) // 4) for event in events]
    assert told[:4] == [
        ("demoted", Tier.HOST, 0, 10),
        ("evicted", Tier.DEVICE, 8, 10),
        ("committed", Tier.DEVICE, 0, 8),
        ("evicted", Tier.DEVICE, 4, 8),
    ]
    assert ("promoted", Tier.DEVICE, 8, 10) in told


def test_a_copy_on_write_is_told() -> None:
    house = House()
    house.say(TEN)
    house.cache.events.is_on = True

    house.say([0, 1, 2, 3, 4, 5, 77])

    events, _ = house.cache.events.take()
    assert [(event.kind, event.start, len(event.tokens) // 4) for event in events] == [("copied", 4, 6)]


def test_ages_are_of_blocks_in_the_callers_seconds() -> None:
    house = House(device=4)
    house.say(TEN)  # now 2
    house.now = 62.0
    house.say(TEN)  # asked for at 63, a minute later

    house.now = 1000.0
    house.say(range(20, 28), namespace=BEN)

    assert house.ages.reuse_gap.total == pytest.approx(3 * 61.0)
    assert sum(house.ages.lifetime.counts) == 1
    assert house.ages.lifetime.total == pytest.approx(1000.0)
    assert house.ages.idle_before_evict.total == pytest.approx(1001.0 - 63.0)
