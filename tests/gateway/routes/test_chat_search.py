"""Beam search, priorities and log-probabilities of the prompt in chat."""

import httpx
import pytest

from engine.sequence import BeamParams
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import chat, content_of, error_of, finish_of, stream


@pytest.fixture(autouse=True)
def _script(engine: ScriptedEngine, tokenizer: ByteTokenizer) -> None:
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in text]) for text in ("best", "next")]


def test_hypotheses_are_told_best_first(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = chat(client, use_beam_search=True, n=2, early_stopping="never", logprobs=True).json()

    assert [choice["message"]["content"] for choice in answer["choices"]] == ["best", "next"]
    assert [len(choice["logprobs"]["content"]) for choice in answer["choices"]] == [4, 4]
    assert answer["usage"]["completion_tokens"] == 8
    assert engine.submits[0].sampling.beam == BeamParams(width=2, early_stopping="never")


def test_what_was_cached_is_told_by_an_answer_that_comes_in_one_event(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.num_cached_tokens = 7

    usage = chat(client, use_beam_search=True).json()["usage"]

    assert usage["prompt_tokens_details"] == {"cached_tokens": 7, "cache_write_tokens": 14}


def test_a_search_may_be_streamed(client: httpx.Client) -> None:
    events = stream(client, use_beam_search=True, n=2)

    assert [content_of(events, index) for index in (0, 1)] == ["best", "next"]
    assert [finish_of(events, index) for index in (0, 1)] == [["stop"], ["stop"]]


@pytest.mark.parametrize("priority", [-5, 0, 7, None])
def test_a_priority_is_a_place_in_the_queue(
    client: httpx.Client, engine: ScriptedEngine, priority: int | None
) -> None:
    chat(client, priority=priority)

    assert engine.submits[0].queue_priority == (priority or 0)


def test_the_prompts_log_probabilities_stand_beside_the_choices(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    answer = chat(client, prompt_logprobs=1, n=2).json()

    told = answer["prompt_logprobs"]
    assert len(told) == answer["usage"]["prompt_tokens"] == len(engine.prompts[0])
    assert told[0] is None
    token_id = str(engine.prompts[0][1])
    assert told[1][token_id] == {"logprob": -0.5, "rank": 1, "decoded_token": chr(int(token_id))}


def test_unasked_they_are_left_out(client: httpx.Client) -> None:
    assert "prompt_logprobs" not in chat(client).json()


def test_they_are_not_streamed(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert error_of(chat(client, prompt_logprobs=1, stream=True), 400)["param"] == "prompt_logprobs"
    assert engine.submits == []
