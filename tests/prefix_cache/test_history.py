"""The history: exact, bounded, and the oldest forgotten first."""

from hypothesis import given
from hypothesis import strategies as st

from prefix_cache.history import Cohort, History
from prefix_cache.tokens import pack

prompts = st.lists(st.sampled_from([1, 2]), max_size=14)


def test_a_prompt_is_remembered_in_whole_blocks() -> None:
    history = History(10, 4)

    history.note(b"a", pack(range(10)), 1.0)

    assert history.num_remembered == 2
    assert history.match_length(b"a", pack(range(10))) == 8
    assert history.match_length(b"a", pack([*range(6), 99, 98, 97])) == 4
    assert history.match_length(b"b", pack(range(10))) == 0


def test_what_was_seen_tells_how_often_and_when() -> None:
    history = History(10, 2)
    history.note(b"a", pack([1, 2, 3, 4]), 1.0)
    history.note(b"a", pack([1, 2, 5, 6]), 3.0)

    seen = history.note(b"a", pack([1, 2, 3, 4, 7, 8]), 9.0)

    told = [(run.num_blocks, run.num_uses, run.cohort.last_used) for run in seen]
    assert told == [(1, 1, 3.0), (1, 0, 1.0)]


def test_the_end_of_the_oldest_run_is_forgotten_first() -> None:
    history = History(5, 1)
    history.note(b"a", pack([1, 2, 3]), 1.0)
    history.note(b"a", pack([1, 4, 5]), 2.0)

    history.note(b"a", pack([6]), 3.0)

    assert history.match_length(b"a", pack([1, 2, 3])) == 2
    assert history.match_length(b"a", pack([1, 4, 5])) == 3


def test_cohorts_are_told_of_and_lose_what_is_forgotten() -> None:
    cohorts: list[Cohort] = []
    forgotten: list[tuple[float, int]] = []

    def forget(cohort: Cohort, num_blocks: int) -> None:
        forgotten.append((cohort.last_used, num_blocks))

    history = History(3, 1, max_uses=1, on_cohort=cohorts.append, on_forget=forget)
    for now in (0.0, 5.0, 10.0):
        history.note(b"a", pack([1, 2]), now)
    history.note(b"a", pack([3, 4]), 12.0)

    assert [(item.num_uses, item.last_used, item.num_blocks) for item in cohorts] == [
        (0, 0.0, 0),
        (1, 5.0, 0),
        (1, 10.0, 1),
        (0, 12.0, 2),
    ]
    assert forgotten == [(10.0, 1)]


def test_a_prompt_longer_than_the_history_keeps_its_beginning() -> None:
    history = History(2, 1)

    history.note(b"a", pack(range(9)), 1.0)

    assert history.match_length(b"a", pack(range(9))) == 2
    history.check_invariants()


@given(st.lists(st.tuples(st.sampled_from([b"", b"a"]), prompts), max_size=30), st.integers(1, 12))
def test_it_is_what_a_list_of_blocks_in_order_of_use_would_be(
    asked: list[tuple[bytes, list[int]]], num_blocks: int
) -> None:
    """The plain model: every block by all that leads to it, the least recently used first."""
    history = History(num_blocks, 2)
    order: list[tuple[bytes, tuple[int, ...]]] = []
    uses: dict[tuple[bytes, tuple[int, ...]], int] = {}
    for now, (namespace, tokens) in enumerate(asked):
        blocks = [(namespace, tuple(tokens[:end])) for end in range(2, len(tokens) + 1, 2)]
        known = [block for block in blocks if block in order]
        expected = [uses[block] for block in known]

        assert history.match_length(namespace, pack(tokens)) == 2 * len(known)
        seen = history.note(namespace, pack(tokens), float(now))

        assert [run.num_uses for run in seen for _ in range(run.num_blocks)] == expected
        for block in blocks:
            uses[block] = uses[block] + 1 if block in known else 0
        order = [block for block in order if block not in blocks] + blocks[::-1]
        order = order[max(0, len(order) - num_blocks) :]
        history.check_invariants()
        assert history.num_remembered == len(order)
