"""The assembler of one answer: what it tells never depends on how the tokens came."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.messages import FinishReason, TokenEvent, TokenLogprob
from gateway.choice import Choice, Piece
from gateway.conversation.detokenizer import Detokenizer
from gateway.conversation.stop import StopMatcher, StopStrings
from tests.fakes import ByteTokenizer

TOKENIZER = ByteTokenizer()
STOPS = ("bc", "é", "aab")


def event(token_ids: Sequence[int], finish_reason: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(
        request_id="r",
        choice=0,
        token_ids=list(token_ids),
        logprobs=[TokenLogprob(-0.5, []) for _ in token_ids],
        finish_reason=finish_reason,
    )


def run(
    events: Sequence[TokenEvent], *, stops: Sequence[str] = STOPS, min_tokens: int = 0
) -> tuple[Choice, list[Piece]]:
    """Feed events until the choice is finished, as the generation does."""
    choice = Choice(0, Detokenizer(TOKENIZER), StopMatcher(StopStrings(stops)), min_tokens=min_tokens)
    pieces: list[Piece] = []
    for each in events:
        pieces.append(choice.push(each))
        if choice.is_finished:
            break
    return choice, pieces


@given(st.lists(st.sampled_from([*b"abc", *"é€".encode()]), max_size=12), st.data(), st.integers(0, 3))
def test_how_tokens_are_grouped_changes_nothing(ids: list[int], data: st.DataObject, min_tokens: int) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)), max_size=4)) | {0, len(ids)})
    grouped = [event(ids[start:end]) for start, end in pairwise(cuts)]

    alone, _ = run([*(event([each]) for each in ids), event([], "length")], min_tokens=min_tokens)
    together, pieces = run([*grouped, event([], "length")], min_tokens=min_tokens)

    assert (together.text, together.token_ids) == (alone.text, alone.token_ids)
    assert together.finish_reason == alone.finish_reason
    assert "".join(piece.text for piece in pieces) == together.text
    assert sum(len(piece.logprobs) for piece in pieces) == len(together.token_ids)


def test_tokens_after_the_one_that_completes_a_stop_string_do_not_count() -> None:
    choice, (piece,) = run([event(b"abca", "length")])

    assert (choice.text, choice.token_ids, choice.finish_reason) == ("a", list(b"abc"), "stop")
    assert len(piece.logprobs) == 3


def test_logprobs_wait_for_text_to_be_told() -> None:
    _, pieces = run([event(b"a"), event(b"b"), event(b"d"), event([], "stop")], stops=("bc",))

    assert [(piece.text, len(piece.logprobs)) for piece in pieces] == [("a", 1), ("", 0), ("bd", 2), ("", 0)]


def test_logprobs_of_tokens_without_text_come_with_the_end() -> None:
    _, pieces = run([event(b"a"), event("é".encode()[:1]), event([], "length")], stops=())

    assert [(piece.text, len(piece.logprobs)) for piece in pieces] == [("a", 1), ("", 0), ("", 1)]
