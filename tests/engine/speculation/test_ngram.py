"""Proposals from the text itself, against a plain search."""

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.ngram import NgramProposer
from engine.step import Span
from tests.engine.paged import make_sequence


def _plain(tokens: list[int], num_tokens: int) -> list[int]:
    """What followed the last 4, 3 or 2 tokens where they stood most recently, and so on from there."""
    for length in (4, 3, 2):
        for end in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) > length and tokens[end - length : end] == tokens[-length:]:
                text = list(tokens)
                for place in range(end, end + num_tokens):
                    text.append(text[place])
                return text[len(tokens) :]
    return []


def _propose(proposer: NgramProposer, tokens: list[int], num_tokens: int) -> list[int]:
    sequence = make_sequence(tokens, [])
    return proposer.propose([Span(sequence, len(tokens) - 1, len(tokens), num_tokens)])[0]


def test_what_followed_before_is_proposed() -> None:
    assert _propose(NgramProposer(), [1, 2, 3, 4, 5, 9, 1, 2], 3) == [3, 4, 5]


def test_the_latest_place_is_taken() -> None:
    assert _propose(NgramProposer(), [1, 2, 3, 1, 2, 4, 1, 2], 1) == [4]


def test_a_longer_run_goes_before_a_later_place() -> None:
    assert _propose(NgramProposer(), [7, 1, 2, 3, 1, 2, 4, 7, 1, 2], 1) == [3]


def test_runs_that_end_in_a_step_of_one_token_are_known_in_full() -> None:
    proposer, text = NgramProposer(), [6, 1, 2, 3, 5, 7, 1, 2, 3, 8, 6, 1, 2, 3]
    sequence = make_sequence(text[:1], [])
    for token in text[1:]:
        sequence.tokens.append(token)
        found = proposer.propose([Span(sequence, sequence.num_tokens - 1, sequence.num_tokens, 1)])

    assert found == [[5]]


def test_one_token_alone_is_too_little() -> None:
    assert _propose(NgramProposer(), [1, 5, 2, 1], 3) == []


def test_what_repeats_goes_on_repeating_past_the_end() -> None:
    assert _propose(NgramProposer(), [9, 4, 4, 4], 5) == [4] * 5
    assert _propose(NgramProposer(), [1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]


def test_proposals_come_in_the_order_of_the_spans_each_as_long_as_its_own() -> None:
    first, second, third = (make_sequence(tokens, []) for tokens in ([1, 2, 3, 1, 2], [5], [4, 4, 4, 4]))
    spans = [Span(first, 4, 5, 2), Span(second, 0, 1, 4), Span(third, 3, 4, 1)]

    assert NgramProposer().propose(spans) == [[3, 1], [], [4]]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(1, 7), min_size=1, max_size=10),
    st.integers(1, 9),
)
def test_a_text_that_grows_gets_what_a_plain_search_finds(
    text: list[int], growth: list[int], num_tokens: int
) -> None:
    proposer, sequence = NgramProposer(), make_sequence(text[:1], [])
    for count in growth:
        found = proposer.propose([Span(sequence, sequence.num_tokens - 1, sequence.num_tokens, num_tokens)])

        assert found == [_plain(sequence.tokens.tolist(), num_tokens)]
        sequence.tokens.extend(text[sequence.num_tokens : sequence.num_tokens + count])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=2, max_size=5))
def test_sequences_know_nothing_of_each_other(texts: list[list[int]]) -> None:
    proposer, sequences = NgramProposer(), [make_sequence(text, []) for text in texts]

    found = proposer.propose([Span(each, each.num_tokens - 1, each.num_tokens, 4) for each in sequences])

    assert found == [_plain(text, 4) for text in texts]


def test_a_sequence_that_is_gone_is_remembered_by_nobody() -> None:
    proposer, sequence = NgramProposer(), make_sequence([1, 2, 1, 2], [])
    proposer.propose([Span(sequence, 3, 4, 4)])
    trace = weakref.ref(sequence)
    del sequence
    gc.collect()

    assert trace() is None
    assert _propose(proposer, [1, 2, 3], 4) == []
