"""Log-probabilities on the wire: names, ranks, and numbers that JSON can hold."""

from array import array

from engine.messages import TokenLogprob
from gateway.choice import ToldToken
from gateway.conversation.spelling import Spelling
from gateway.wire.logprobs import PromptLogprob, chat_logprobs, completion_logprobs, prompt_logprobs
from tests.fakes import ByteTokenizer

SPELLING = Spelling(ByteTokenizer())
NAMELESS = (900, 901)  # two tokens whose text is the empty one


def test_of_two_tokens_with_one_text_the_better_is_told_whichever_was_drawn() -> None:
    for drawn, other in (NAMELESS, reversed(NAMELESS)):
        value = TokenLogprob(-3.0, [(other, -1.0)])

        told = completion_logprobs(SPELLING, [ToldToken(drawn, 0, value)], 1)

        assert told.top_logprobs == [{"": -1.0}]
        assert told.token_logprobs == [-3.0]


def test_only_as_many_candidates_are_told_as_were_asked_for() -> None:
    value = TokenLogprob(-4.0, [(97, -0.1), (98, -0.2), (99, -0.3)])
    token = ToldToken(100, 7, value)

    assert completion_logprobs(SPELLING, [token], 2).top_logprobs == [{"a": -0.1, "b": -0.2, "d": -4.0}]
    (entry,) = chat_logprobs(SPELLING, [token], 1).content
    assert [each.token for each in entry.top_logprobs] == ["a"]
    (_, told) = prompt_logprobs(SPELLING, array("i", [1, 100]), [value], 1)
    assert told == {
        "100": PromptLogprob(logprob=-4.0, rank=None, decoded_token="d"),
        "97": PromptLogprob(logprob=-0.1, rank=1, decoded_token="a"),
    }


def test_an_impossible_token_has_a_finite_number() -> None:
    value = TokenLogprob(float("-inf"), [(97, float("-inf"))])

    told = completion_logprobs(SPELLING, [ToldToken(98, 0, value)], 1)

    assert told.token_logprobs == [-9999.0]
    assert told.top_logprobs == [{"a": -9999.0, "b": -9999.0}]
    assert chat_logprobs(SPELLING, [ToldToken(98, 0, value)], 0).content[0].logprob == -9999.0


def test_what_nothing_stands_before_has_none() -> None:
    told = completion_logprobs(SPELLING, [ToldToken(97, 0, None)], 3)

    assert (told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset) == (
        ["a"],
        [None],
        [None],
        [0],
    )
