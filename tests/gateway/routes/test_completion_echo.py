"""Echo: the prompt told before its answers, with its log-probabilities, whole and streamed."""

from typing import Any

import httpx
import pytest

from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import choices_of, complete, stream_completion, text_of

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(autouse=True)
def _script(engine: ScriptedEngine, tokenizer: ByteTokenizer) -> None:
    words = ("ab", "c", "", "déf", "g", "hij", "k", "l")
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in word]) for word in words]


def choices(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = complete(client, **fields)
    assert response.status_code == 200, response.text
    return list(response.json()["choices"])


def joined(events: list[Any], index: int, name: str) -> list[Any]:
    """One list of the log-probabilities that a stream told of a choice."""
    told = [each["logprobs"] for each in choices_of(events) if each["index"] == index and each["logprobs"]]
    return [value for each in told for value in each[name]]


@pytest.mark.parametrize("prompt", ["abc déf", [97, 98, 195, 169]])
def test_the_prompt_stands_before_every_answer(client: httpx.Client, prompt: object) -> None:
    text = prompt if isinstance(prompt, str) else "abé"

    assert [each["text"] for each in choices(client, prompt=prompt, echo=True, n=2)] == [
        text + "ab",
        text + "c",
    ]


def test_its_log_probabilities_come_first_and_its_first_token_has_none(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.logprobs = {ord("y"): -1.5, ord("z"): -2.5}

    told = choices(client, prompt="xyz", echo=True, logprobs=2)[0]["logprobs"]

    assert told["tokens"] == ["x", "y", "z", "a", "b"]
    assert told["token_logprobs"] == [None, -1.5, -2.5, -0.5, -0.5]
    assert told["top_logprobs"][0] is None
    assert told["top_logprobs"][1] == {"y": -1.5, "z": -2.5}
    assert told["text_offset"] == [0, 1, 2, 3, 4]
    assert engine.submits[0].sampling.prompt_logprobs == 2


def test_offsets_count_characters_of_the_text(client: httpx.Client) -> None:
    choice = choices(client, prompt="é€x", echo=True, logprobs=0)[0]

    assert choice["text"] == "é€xab"
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 2, 3, 4]


def test_without_an_answer_the_prompt_alone_is_weighed(client: httpx.Client, engine: ScriptedEngine) -> None:
    response = complete(client, prompt=["xy", "z"], echo=True, logprobs=1, max_tokens=0, n=2).json()

    assert [each["text"] for each in response["choices"]] == ["xy", "xy", "z", "z"]
    assert [each["finish_reason"] for each in response["choices"]] == ["length"] * 4
    assert response["choices"][0]["logprobs"]["tokens"] == ["x", "y"]
    assert response["choices"][3]["logprobs"]["token_logprobs"] == [None]
    assert response["usage"]["completion_tokens"] == 0
    assert response["usage"]["total_tokens"] == response["usage"]["prompt_tokens"] == 3
    assert [submit.sampling.max_tokens for submit in engine.submits] == [0, 0]


def test_a_prompt_as_long_as_the_context_may_be_weighed(client: httpx.Client) -> None:
    """It needs no room for an answer; one token more is too long."""
    fields = {"echo": True, "logprobs": 0, "max_tokens": 0}

    assert complete(client, prompt=[100] * 4096, **fields).status_code == 200
    assert complete(client, prompt=[100] * 4097, **fields).status_code == 400
    assert complete(client, prompt=[100] * 4096, max_tokens=1).status_code == 400


def test_log_probabilities_of_the_prompt_may_be_asked_for_twice(client: httpx.Client) -> None:
    choice = choices(client, prompt="xyz", echo=True, logprobs=1, prompt_logprobs=3)[0]

    assert [len(each) for each in choice["prompt_logprobs"][1:]] == [3, 3]
    assert [len(each) for each in choice["logprobs"]["top_logprobs"][1:]] == [1, 1, 1, 1]

    choice = choices(client, prompt="xyz", echo=True, logprobs=3, prompt_logprobs=1)[0]

    assert [len(each) for each in choice["prompt_logprobs"][1:]] == [1, 1]
    assert [len(each) for each in choice["logprobs"]["top_logprobs"][1:]] == [3, 3, 3, 3]


@pytest.mark.parametrize("max_tokens", [0, 2, 9])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "prompt", ["abc", ["abc", "d"], [[120, 226, 130, 172], [7]], [[256, 257], [97, 256]]], ids=str
)
def test_a_stream_joins_to_the_whole_answer(
    client: httpx.Client, prompt: object, n: int, logprobs: int | None, max_tokens: int
) -> None:
    fields = {"prompt": prompt, "n": n, "logprobs": logprobs, "max_tokens": max_tokens, "echo": True}
    options = {"stream_options": {"include_usage": True}}

    whole = complete(client, **fields).json()
    *events, last, done = stream_completion(client, **fields, **options)

    for choice in whole["choices"]:
        index = choice["index"]
        assert text_of(events, index) == choice["text"]
        for name in LISTS:
            assert joined(events, index, name) == ((choice["logprobs"] or {}).get(name) or [])
        ends = [each["finish_reason"] for each in choices_of(events) if each["index"] == index]
        assert [end for end in ends if end] == [choice["finish_reason"]]
    assert last["usage"] == whole["usage"]
    assert (last["choices"], done) == ([], "[DONE]")


def test_in_a_stream_the_prompt_is_told_once_and_first(client: httpx.Client) -> None:
    events = stream_completion(client, prompt="xyz", echo=True, n=2, logprobs=1)

    pieces = [[each["text"] for each in choices_of(events) if each["index"] == index] for index in (0, 1)]
    assert pieces == [["xyz", "a", "b", ""], ["xyz", "c", ""]]
