"""The tree's life, step by step. `test_the_worked_example` is the one that prefix_cache/README.md tells."""

from prefix_cache.lease import Lease, Retention
from prefix_cache.node import SHARED
from prefix_cache.plan import BlockCopy, BlockId, Tier
from prefix_cache.tokens import common_prefix, pack
from prefix_cache.tree import PrefixCache


def ids(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def acquire(
    cache: PrefixCache, tokens: list[int], *, namespace: bytes = b"a", now: float = 0.0
) -> Lease | None:
    return cache.acquire(namespace, pack(tokens), max_new=99, num_required=len(tokens), now=now)


def compute(cache: PrefixCache, lease: Lease, tokens: list[int]) -> None:
    """Pretend to have run all of `tokens`, and make them findable."""
    assert cache.grow(lease, len(tokens))
    cache.take_copies()
    cache.finish_copies()
    cache.commit(lease, pack(tokens[lease.num_committed :]))


def remember(cache: PrefixCache, tokens: list[int], *, namespace: bytes = b"a", now: float = 0.0) -> Lease:
    """One whole life: acquire, compute, release."""
    lease = acquire(cache, tokens, namespace=namespace, now=now)
    assert lease is not None
    compute(cache, lease, tokens)
    blocks = list(lease.blocks)
    cache.release(lease, now)
    cache.check_invariants([])
    lease.blocks = blocks
    return lease


def copy(source: int, target: int, num_tokens: int) -> BlockCopy:
    return BlockCopy(Tier.DEVICE, BlockId(source), Tier.DEVICE, BlockId(target), num_tokens)


def test_the_worked_example() -> None:
    cache = PrefixCache(num_blocks=6, block_size=4)

    # 1. Ann asks ten tokens: two full blocks and a half-filled tail.
    ann = acquire(cache, ids(1, 10))
    assert ann is not None
    compute(cache, ann, ids(1, 10))
    assert ann.blocks == [0, 1, 2]

    # 2. While she runs, Ben sends the same first nine tokens and another tenth. He holds her full blocks, and
    #    a copy of the one token that they share in the third: she still writes there.
    ben = acquire(cache, [*ids(1, 9), 99, 98])
    assert ben is not None
    assert (ben.num_matched, ben.blocks) == (9, [0, 1, 3])
    assert cache.take_copies() == (copy(2, 3, 1),)
    cache.finish_copies()
    compute(cache, ben, [*ids(1, 9), 99, 98])

    # 3. Ann's answer grows by three tokens: one more block. Both leave; everything they computed stays.
    compute(cache, ann, ids(1, 13))
    assert ann.blocks == [0, 1, 2, 4]
    cache.release(ann, now=1.0)
    cache.release(ben, now=2.0)
    assert (cache.ledger.num_free, cache.ledger.num_cached, cache.ledger.num_held) == (1, 5, 0)

    # 4. Ann's next turn continues her tail in place: nobody else holds it, and it ends where the match does.
    again = acquire(cache, ids(1, 16), now=3.0)
    assert again is not None
    assert (again.num_matched, again.blocks) == (13, [0, 1, 2, 4])
    assert cache.take_copies() == ()

    # 5. A stranger needs two blocks. One is free; Ben's tail, the only leaf that nobody holds, makes room.
    stranger = acquire(cache, ids(50, 57), namespace=b"b", now=4.0)
    assert stranger is not None
    assert sorted(stranger.blocks) == [3, 5]
    assert cache.ledger.num_evicted == 1
    cache.check_invariants([again, stranger])


def test_one_token_is_always_left_to_compute() -> None:
    cache = PrefixCache(8, 4)
    for length in (1, 3, 4, 5, 8, 9):
        remember(cache, ids(1, length))

        lease = acquire(cache, ids(1, length))

        assert lease is not None
        assert lease.num_matched == length - 1
        cache.release(lease, 0.0)


def test_namespaces_do_not_see_each_other_but_see_what_is_shared() -> None:
    cache = PrefixCache(16, 4)
    remember(cache, ids(1, 9), namespace=b"a")
    remember(cache, ids(20, 29), namespace=SHARED)

    assert cache.match_length(b"b", pack(ids(1, 9))) == 0
    assert cache.match_length(b"b", pack(ids(20, 29))) == 10


def test_a_private_run_under_a_shared_one_stays_private() -> None:
    cache = PrefixCache(16, 4)
    remember(cache, ids(1, 8), namespace=SHARED)
    remember(cache, ids(1, 14), namespace=b"a")

    assert cache.match_length(b"a", pack(ids(1, 14))) == 14
    assert cache.match_length(b"b", pack(ids(1, 14))) == 8


def test_a_shared_tail_is_copied_not_taken_over() -> None:
    """What a tenant writes behind a shared prefix must not become shared."""
    cache = PrefixCache(16, 4)
    remember(cache, ids(1, 6), namespace=SHARED)

    remember(cache, ids(1, 8), namespace=b"a")

    assert cache.num_copied == 1
    assert cache.match_length(b"b", pack(ids(1, 8))) == 6


def test_two_that_compute_the_same_keep_their_own_blocks_and_share_the_path() -> None:
    cache = PrefixCache(16, 4)
    first, second = acquire(cache, ids(1, 8)), acquire(cache, ids(1, 8))
    assert first is not None
    assert second is not None
    compute(cache, first, ids(1, 8))
    compute(cache, second, ids(1, 8))

    assert first.node is second.node
    assert second.duplicates == second.blocks
    cache.check_invariants([first, second])
    cache.release(second, 0.0)
    cache.release(first, 0.0)
    assert cache.ledger.num_cached == 2


def test_the_same_tail_filled_twice_ends_as_one() -> None:
    cache = PrefixCache(16, 4)
    first, second = acquire(cache, ids(1, 3)), acquire(cache, [1, 2, 99])
    assert first is not None
    assert second is not None
    compute(cache, first, [1, 2, 3])
    compute(cache, second, [1, 2])  # a prefix of the first's: waits
    compute(cache, first, [1, 2, 3, 4])
    compute(cache, second, [1, 2, 3, 4])

    assert second.node is first.node
    for lease in (first, second):
        cache.release(lease, 0.0)
    assert cache.ledger.num_cached == 1
    cache.check_invariants([])


def test_a_tail_that_a_longer_run_repeats_is_freed() -> None:
    cache = PrefixCache(16, 4)
    remember(cache, [1, 2])
    remember(cache, [1, 2, 3])
    remember(cache, [1, 2])

    assert cache.ledger.num_cached == 1
    assert cache.match_length(b"a", pack([1, 2, 3])) == 3


def test_only_leaves_are_evicted_tail_first_and_oldest_first() -> None:
    cache = PrefixCache(8, 4)
    remember(cache, ids(1, 16), now=1.0)
    remember(cache, ids(50, 65), now=2.0)

    remember(cache, ids(90, 93), now=3.0)

    assert cache.match_length(b"a", pack(ids(1, 16))) == 12
    assert cache.match_length(b"a", pack(ids(50, 65))) == 16


def test_what_is_used_again_is_kept() -> None:
    cache = PrefixCache(8, 4)
    remember(cache, ids(1, 16), now=1.0)
    remember(cache, ids(50, 65), now=2.0)
    remember(cache, ids(1, 16), now=3.0)

    remember(cache, ids(90, 97), now=4.0)

    assert cache.match_length(b"a", pack(ids(1, 15))) == 15
    assert cache.match_length(b"a", pack(ids(50, 65))) == 8


def test_what_is_held_is_never_evicted() -> None:
    cache = PrefixCache(4, 4)
    lease = acquire(cache, ids(1, 12))
    assert lease is not None

    assert acquire(cache, ids(50, 57)) is None
    assert acquire(cache, ids(50, 53)) is not None


def test_a_refused_acquisition_holds_nothing_and_refreshes_nothing() -> None:
    cache = PrefixCache(4, 4)
    remember(cache, ids(1, 8), now=1.0)
    holder = acquire(cache, ids(50, 57), now=2.0)
    assert holder is not None

    assert acquire(cache, ids(1, 20), now=3.0) is None

    cache.check_invariants([holder])
    assert cache.ledger.num_cached == 2


def test_a_tail_makes_room_for_its_own_successor() -> None:
    """The block that a match ends in may be the last one there is: then it is forgotten rather than
    copied.
    """
    cache = PrefixCache(2, 4)
    remember(cache, ids(1, 7))

    lease = acquire(cache, [1, 2, 3, 4, 5, 99, 98, 97])

    assert lease is not None
    assert lease.num_matched == 4
    cache.check_invariants([lease])


def test_a_copy_is_cancelled_with_its_lease() -> None:
    cache = PrefixCache(8, 4)
    remember(cache, ids(1, 7))
    lease = acquire(cache, [1, 2, 3, 4, 5, 99])
    assert lease is not None
    cache.release(lease, 0.0)

    assert cache.take_copies() == ()
    assert cache.ledger.num_held == 0
    cache.check_invariants([])


def test_a_copys_source_is_not_evicted_before_it_was_read() -> None:
    cache = PrefixCache(4, 4)
    remember(cache, ids(1, 7), now=1.0)
    lease = acquire(cache, [1, 2, 3, 4, 5, 99], now=2.0)
    assert lease is not None

    assert acquire(cache, ids(50, 57), now=3.0) is None
    cache.take_copies()
    assert acquire(cache, ids(50, 57), now=3.0) is None
    cache.finish_copies()

    assert acquire(cache, ids(50, 57), now=3.0) is not None


def test_common_prefix_counts_tokens() -> None:
    for first, second, expected in [
        ([], [1], 0),
        ([1, 2], [1, 2], 2),
        ([1, 256], [1, 512], 1),
        ([7], [8], 0),
    ]:
        assert common_prefix(bytearray(pack(first)), bytearray(pack(second))) == expected


def test_what_is_found_does_not_depend_on_how_runs_are_split() -> None:
    """A shared run and an own one begin alike, and the own one agrees longer: looking again finds as much."""
    cache = PrefixCache(num_blocks=12, block_size=4)
    remember(cache, [1, 2, 3, 4, 5, 1, 7])
    remember(cache, [1, 2, 3, 4, 5, 2, 7], namespace=SHARED)
    asked = pack([1, 2, 3, 4, 5, 1, 9])

    assert [cache.match_length(b"a", asked) for _ in range(3)] == [6, 6, 6]
    assert cache.match_length(b"b", asked) == 5
    hold = cache.hold(b"a", asked)
    assert hold.num_tokens == 6
    cache.let_go(hold)


def test_below_a_shared_run_the_longer_of_two_ways_is_taken() -> None:
    cache = PrefixCache(num_blocks=20, block_size=4)
    remember(cache, ids(1, 8), namespace=SHARED)
    remember(cache, [*ids(1, 8), 20, 21, 22, 23, 24])
    remember(cache, [*ids(1, 8), 20, 21, 30], namespace=SHARED)

    assert cache.match_length(b"a", pack([*ids(1, 8), 20, 21, 22, 23, 99])) == 12
    assert cache.match_length(b"a", pack([*ids(1, 8), 20, 21, 30, 31])) == 11


def test_what_passes_is_found_while_it_is_held_and_gone_after() -> None:
    cache = PrefixCache(num_blocks=8, block_size=4)
    side = cache.acquire(
        b"a", pack(ids(1, 9)), max_new=99, num_required=9, now=0.0, retention=Retention(is_side=True)
    )
    assert side is not None
    compute(cache, side, ids(1, 9))
    assert cache.match_length(b"a", pack(ids(1, 9))) == 9
    assert cache.kept_length(b"a", pack(ids(1, 9))) == 0

    user = acquire(cache, [*ids(1, 8), 70])
    assert user is not None
    assert user.num_matched == 8
    cache.release(side, 1.0)

    assert cache.kept_length(b"a", pack(ids(1, 9))) == 8  # what somebody uses stays
    cache.release(user, 2.0)
    cache.check_invariants([])
    assert cache.match_length(b"a", pack(ids(1, 9))) == 8
    assert cache.ledger.num_cached == 2


def test_what_passes_and_is_kept_after_all_stays() -> None:
    cache = PrefixCache(num_blocks=8, block_size=4)
    side = cache.acquire(
        b"a", pack(ids(1, 6)), max_new=99, num_required=6, now=0.0, retention=Retention(is_side=True)
    )
    assert side is not None
    compute(cache, side, ids(1, 6))

    cache.keep(side)
    cache.release(side, 1.0)

    assert cache.match_length(b"a", pack(ids(1, 6))) == 6


def test_what_a_side_request_adds_to_a_kept_run_goes_and_the_run_stays() -> None:
    cache = PrefixCache(num_blocks=8, block_size=4)
    remember(cache, ids(1, 8))
    side = cache.acquire(
        b"a", pack(ids(1, 13)), max_new=99, num_required=13, now=0.0, retention=Retention(is_side=True)
    )
    assert side is not None
    compute(cache, side, ids(1, 13))
    assert cache.match_length(b"a", pack(ids(1, 13))) == 13

    cache.release(side, 1.0)

    assert cache.match_length(b"a", pack(ids(1, 13))) == 8
    assert cache.ledger.num_cached == 2


def test_what_two_compute_of_which_one_passes_stays() -> None:
    """Both came before either was there; the one that passes was faster."""
    cache = PrefixCache(num_blocks=8, block_size=4)
    side = cache.acquire(
        b"a", pack(ids(1, 6)), max_new=99, num_required=6, now=0.0, retention=Retention(is_side=True)
    )
    plain = acquire(cache, ids(1, 6))
    assert side is not None
    assert plain is not None
    compute(cache, side, ids(1, 6))
    compute(cache, plain, ids(1, 6))

    cache.release(side, 1.0)
    cache.release(plain, 2.0)

    assert cache.match_length(b"a", pack(ids(1, 6))) >= 4
    cache.check_invariants([])
