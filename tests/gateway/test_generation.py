"""One prompt's choices, fed with events: what is told, and in which order."""

from array import array
from typing import Any

from engine.messages import Submit, TokenEvent, TokenLogprob
from engine.sequence import SamplingParams
from gateway.choice import Choice
from gateway.conversation.detokenizer import Detokenizer
from gateway.conversation.stop import StopMatcher, StopStrings
from gateway.generation import Echo, Generation
from tests.fakes import ByteTokenizer

TOKENIZER = ByteTokenizer()
PROMPT = array("i", list(b"xyz"))


def generation(num_choices: int = 2, **fields: Any) -> Generation:
    submit = Submit(
        request_id="r",
        prompt=PROMPT.tobytes(),
        sampling=SamplingParams(max_tokens=9),
        namespace=b"",
        num_choices=num_choices,
    )
    stops = StopStrings(())
    choices = [
        Choice(4 + n, Detokenizer(TOKENIZER), StopMatcher(stops), min_tokens=0) for n in range(num_choices)
    ]
    return Generation(submit=submit, prompt_ids=PROMPT, choices=choices, **fields)


def event(choice: int, text: bytes, **fields: Any) -> TokenEvent:
    return TokenEvent(request_id="r", choice=choice, token_ids=list(text), **fields)


def weighed(*values: float) -> list[TokenLogprob]:
    return [TokenLogprob(value, []) for value in values]


def test_no_answer_is_told_before_the_prompt_is_weighed() -> None:
    told = generation(echo=Echo(text="xyz", offsets=(0, 1, 2), with_logprobs=True))

    assert told.push(event(1, b"b")) == []
    assert told.push(event(0, b"", prompt_logprobs=weighed(-1.0))) == []
    pieces = told.push(event(0, b"a", prompt_logprobs=weighed(-2.0)))

    assert [(piece.index, piece.text) for piece in pieces] == [
        (4, "xyz"),
        (5, "xyz"),
        (5, "b"),
        (4, ""),
        (4, "a"),
    ]
    values = [token.logprob and token.logprob.logprob for token in pieces[0].logprobs]
    assert values == [None, -1.0, -2.0]


def test_an_echo_without_log_probabilities_waits_for_nothing() -> None:
    told = generation(1, echo=Echo(text="xyz", offsets=(), with_logprobs=False))

    assert [piece.text for piece in told.push(event(0, b"a"))] == ["xyz", "a"]
    assert [piece.text for piece in told.push(event(0, b"b"))] == ["b"]


def test_a_prompt_of_one_token_has_nothing_to_wait_for() -> None:
    told = generation(1, echo=Echo(text="x", offsets=(0,), with_logprobs=True))
    told.prompt_ids = PROMPT[:1]

    assert [piece.text for piece in told.push(event(0, b"a"))] == ["x", "a"]


def test_what_was_drawn_after_the_end_is_dropped() -> None:
    told = generation(2)
    told.push(event(0, b"a", finish_reason="stop"))

    assert told.push(event(0, b"b", finish_reason="stop")) == []
    assert not told.is_finished
    told.push(event(1, b"c", finish_reason="length"))
    assert told.is_finished
    assert told.num_drawn == 2


def test_a_mean_is_over_the_tokens_that_count() -> None:
    told = generation(1)

    told.push(event(0, b"ab", logprobs=weighed(-1.0, -2.0)))
    told.push(event(0, b"", finish_reason="stop"))

    assert (told.choices[0].cumulative_logprob, told.choices[0].mean_logprob) == (-3.0, -1.5)
    assert generation(1).choices[0].mean_logprob == 0.0
