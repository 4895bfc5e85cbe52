"""How long proposals get: by what they cost, by what became of them, and beside others."""

from collections.abc import Callable

import pytest

from engine.sequence import Sequence
from engine.speculation.length import LookaheadPolicy
from tests.engine.paged import make_sequence

MAX_TOKENS = 8
RETRY_STEPS = 32


def flat(num_tokens: int) -> float:
    return 1.0


def linear(num_tokens: int) -> float:
    return float(num_tokens)


def flat_to_16(num_tokens: int) -> float:
    return max(1.0, num_tokens / 16)


def policy(seconds: Callable[[int], float], proposal_seconds: float = 0.0) -> LookaheadPolicy:
    return LookaheadPolicy(seconds, max_tokens=MAX_TOKENS, proposal_seconds=proposal_seconds)


def sequence() -> Sequence:
    return make_sequence([1, 2, 3], [])


def play(
    lookahead: LookaheadPolicy, each: Sequence, num_steps: int, num_running: int, num_holding: int
) -> list[int]:
    """Lengths of some steps of a sequence of whose proposals so many hold."""
    lengths = []
    for _ in range(num_steps):
        length = lookahead.num_tokens(each, num_running)
        if length:
            lookahead.note(each, length, min(length, num_holding))
        lengths.append(length)
    return lengths


@pytest.mark.parametrize("num_running", [1, 40])
def test_where_more_tokens_cost_nothing_all_are_proposed(num_running: int) -> None:
    assert play(policy(flat), sequence(), 20, num_running, num_holding=1) == [MAX_TOKENS] * 20


@pytest.mark.parametrize("num_running", [1, 40])
def test_where_every_token_costs_as_much_as_the_first_nothing_pays(num_running: int) -> None:
    assert play(policy(linear), sequence(), 20, num_running, num_holding=8) == [0] * 20


def test_more_is_proposed_the_more_holds() -> None:
    lengths = []
    for num_holding in (0, 1, 2, 8):
        steps = play(policy(lambda count: 1 + 0.2 * count), sequence(), 60, 1, num_holding)
        lengths.append(sum(steps[-28:]))

    assert lengths == sorted(lengths)
    assert lengths[0] <= 1
    assert lengths[-1] == 28 * MAX_TOKENS


def test_what_making_proposals_costs_counts() -> None:
    assert policy(flat, proposal_seconds=0.01).num_tokens(sequence(), 1) > 0
    assert policy(flat, proposal_seconds=1.0).num_tokens(sequence(), 1) == 0


def test_the_others_wait_for_a_longer_step_too() -> None:
    lookahead = policy(lambda count: 10 + count)

    assert lookahead.num_tokens(sequence(), 1) == 4
    assert lookahead.num_tokens(sequence(), 30) == 0


def test_sequences_together_propose_no_more_than_is_cheap() -> None:
    lookahead, sequences = policy(flat_to_16), [sequence() for _ in range(10)]
    for _ in range(5):
        for each in sequences:
            play(lookahead, each, 1, len(sequences), num_holding=8)

    lengths = [lookahead.num_tokens(each, len(sequences)) for each in sequences]

    assert 0 < sum(lengths) + len(sequences) <= 18


def test_who_ends_leaves_its_room_to_others() -> None:
    lookahead, first, second = policy(flat_to_16), sequence(), sequence()
    assert play(lookahead, first, 1, 8, num_holding=8) == [MAX_TOKENS]
    shortened = lookahead.num_tokens(second, 8)
    lookahead.forget(first)

    assert lookahead.num_tokens(second, 8) == MAX_TOKENS > shortened


def test_who_rests_leaves_its_room_to_others() -> None:
    lookahead, first, second = policy(flat_to_16), sequence(), sequence()
    for _ in range(40):
        lookahead.note(first, 8, 0)
    assert lookahead.num_tokens(first, 30) == 0

    assert lookahead.num_tokens(second, 8) == MAX_TOKENS


def test_who_finds_nothing_to_propose_takes_no_room_from_others() -> None:
    lookahead, first, second = policy(flat_to_16), sequence(), sequence()
    play(lookahead, first, 1, 8, num_holding=8)
    lookahead.note(first, 0, 0)

    assert lookahead.num_tokens(second, 8) == MAX_TOKENS


def test_one_step_in_some_tries_again_with_one_token() -> None:
    costly = policy(lambda count: 1 + 0.5 * count)
    each = sequence()
    play(costly, each, 40, 1, num_holding=0)

    lengths = play(costly, each, 10 * RETRY_STEPS, 1, num_holding=0)

    assert sum(lengths) == 10
    assert max(lengths) == 1


def test_a_text_that_begins_to_repeat_itself_is_found_out() -> None:
    lookahead, each = policy(lambda count: 1 + 0.1 * count), sequence()
    assert play(lookahead, each, 40, 1, num_holding=0)[-1] == 0

    assert play(lookahead, each, 6 * RETRY_STEPS, 1, num_holding=8)[-1] == MAX_TOKENS


def test_nothing_found_is_no_failure() -> None:
    lookahead, each = policy(lambda count: 1 + 0.2 * count), sequence()
    before = lookahead.num_tokens(each, 1)
    for _ in range(50):
        lookahead.note(each, 0, 0)

    assert lookahead.num_tokens(each, 1) == before > 0


def test_who_is_tried_again_and_finds_nothing_is_tried_again_at_once() -> None:
    lookahead, each = policy(lambda count: 1 + 0.5 * count), sequence()
    play(lookahead, each, 40, 1, num_holding=0)
    while not lookahead.num_tokens(each, 1):
        pass
    lookahead.note(each, 0, 0)

    assert lookahead.num_tokens(each, 1) == 1


def test_tokens_after_the_first_that_failed_say_nothing() -> None:
    short, long = policy(lambda count: 1 + 0.2 * count), policy(lambda count: 1 + 0.2 * count)
    each = sequence()
    for _ in range(5):
        short.note(each, 3, 2)
        long.note(each, 8, 2)

    assert short.num_tokens(each, 1) == long.num_tokens(each, 1) > 0


def test_a_sequence_that_is_forgotten_begins_anew() -> None:
    lookahead, each = policy(lambda count: 1 + 0.2 * count), sequence()
    before = lookahead.num_tokens(each, 1)
    play(lookahead, each, 20, 1, num_holding=0)
    lookahead.forget(each)

    assert lookahead.num_tokens(each, 1) == before


def test_at_most_max_tokens_are_proposed_and_none_if_that_is_none() -> None:
    none = LookaheadPolicy(linear, max_tokens=0)

    assert [none.num_tokens(sequence(), 1) for _ in range(2 * RETRY_STEPS)] == [0] * 2 * RETRY_STEPS
