"""POST /v1/completions as a stream: chunks, several prompts, failures, full queues, clients that leave."""

import time

import httpx
import pytest
from openai.types import Completion

from engine.errors import EngineDied, QueueFull, RequestRefused, WaitedTooLong
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import (
    CHAT,
    COMPLETIONS,
    body,
    choices_of,
    complete,
    error_of,
    finish_of,
    row_of,
    stream_completion,
    text_of,
)
from tests.live import LiveServer

ENDPOINTS = {CHAT: body(), COMPLETIONS: {"model": "scripted", "prompt": ["a", "b", "c"]}}


def wait_until_idle(engine: ScriptedEngine) -> None:
    deadline = time.monotonic() + 5
    while engine.num_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.num_running == 0, "the engine still runs what nobody reads"


def test_all_chunks_have_the_shape_of_a_completion(client: httpx.Client) -> None:
    *chunks, done = stream_completion(client)

    assert done == "[DONE]"
    for chunk in chunks:
        Completion.model_validate(chunk | {"choices": []})
        assert chunk["object"] == "text_completion"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert [each["text"] for each in choices_of(chunks)] == ["Hello", ", ", "world", ""]
    assert [each["finish_reason"] for each in choices_of(chunks)] == [None, None, None, "stop"]
    assert all("usage" not in chunk for chunk in chunks)


def test_log_probabilities_of_tokens_without_text_ride_on_the_last_chunk(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.scripts = [Script([ord("a"), 1000, 1001])]

    told = choices_of(stream_completion(client, logprobs=0))

    assert [each["text"] for each in told] == ["a", ""]
    assert [len(each["logprobs"]["tokens"]) for each in told] == [1, 2]


def test_answers_to_several_prompts_interleave(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in text]) for text in ("aaa", "b", "cc")]

    events = stream_completion(client, prompt=["x", "y", "z"])

    told = [(each["index"], each["text"]) for each in choices_of(events)]
    assert told[:3] == [(0, "a"), (1, "b"), (2, "c")]
    assert [text_of(events, index) for index in range(3)] == ["aaa", "b", "cc"]
    assert [finish_of(events, index) for index in range(3)] == [["stop"]] * 3


def test_a_stop_string_ends_the_choice_that_it_hits_and_no_other(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in text]) for text in ("abcd", "abef")]

    events = stream_completion(client, prompt=["x", "y"], stop="bc")

    assert [text_of(events, index) for index in range(2)] == ["a", "abef"]
    assert engine.aborts == [(engine.submits[0].request_id, 0)]


def test_the_choice_that_is_aborted_is_counted_within_its_own_prompt(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in text]) for text in ("a", "b", "c", "xyz")]

    events = stream_completion(client, prompt=["p", "q"], n=2, stop="y")

    assert [text_of(events, index) for index in range(4)] == ["a", "b", "c", "x"]
    assert engine.aborts == [(engine.submits[1].request_id, 1)]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_full_queue_is_a_429_that_says_when_to_come_again(
    client: httpx.Client, engine: ScriptedEngine, path: str, streamed: bool
) -> None:
    engine.refusal = QueueFull("too much waits", 2.4)

    response = client.post(path, json=ENDPOINTS[path] | {"stream": streamed})

    error = error_of(response, 429)
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert response.headers["retry-after"] == "3"
    assert engine.num_running == 0


def test_what_was_never_queued_is_no_usage(
    client: httpx.Client, server: LiveServer, engine: ScriptedEngine
) -> None:
    rows_before = len(server.services.usage.waiting)
    engine.refusal = QueueFull("too much waits", 1.0)
    assert complete(client).status_code == 429
    engine.refusal = None

    row_of(server, complete(client).json()["id"])

    assert len(server.services.usage.waiting) == rows_before + 1


def test_the_time_to_come_again_is_a_second_at_least(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.refusal = QueueFull("too much waits", 0.01)

    assert complete(client).headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_request_that_never_began_is_a_503(client: httpx.Client, engine: ScriptedEngine, path: str) -> None:
    engine.scripts = [Script([], fail_after=0)]
    engine.failure = WaitedTooLong("too long", 9.2)

    response = client.post(path, json=ENDPOINTS[path])

    assert error_of(response, 503)["code"] == "engine_overloaded"
    assert response.headers["retry-after"] == "10"


@pytest.mark.parametrize("path", ENDPOINTS)
def test_in_a_stream_that_has_begun_it_is_an_event(
    client: httpx.Client, engine: ScriptedEngine, path: str
) -> None:
    engine.scripts = [Script([], fail_after=0)]
    engine.failure = WaitedTooLong("too long", 9.2)

    response = client.post(path, json=ENDPOINTS[path] | {"stream": True})

    assert response.status_code == 200
    assert "engine_overloaded" in response.text
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("path", ENDPOINTS)
def test_what_the_engine_refuses_is_a_400_even_for_a_stream(
    client: httpx.Client, engine: ScriptedEngine, path: str
) -> None:
    engine.refusal = RequestRefused("larger than the pool")

    error = error_of(client.post(path, json=ENDPOINTS[path] | {"stream": True}), 400)

    assert error["code"] == "request_refused"


def test_one_prompt_that_fails_ends_the_stream_with_one_error(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    letters = [tokenizer.id_of("x")] * 9
    engine.scripts = [Script(letters), Script(letters, fail_after=2)]
    engine.failure = EngineDied("gone")

    *chunks, error = stream_completion(client, prompt=["a", "b"])

    assert error["error"]["code"] == "engine_unavailable"
    assert finish_of(chunks, 0) == finish_of(chunks, 1) == []
    wait_until_idle(engine)


@pytest.mark.parametrize("n", [1, 2])
def test_when_the_client_leaves_every_answer_to_every_prompt_is_aborted(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer, n: int
) -> None:
    engine.scripts = [Script([tokenizer.id_of("x")] * 3000)]
    engine.step_seconds = 0.005
    before = engine.num_aborted
    fields = {"model": "scripted", "prompt": ["a", "b", "c"], "n": n, "max_tokens": 3000, "stream": True}

    with client.stream("POST", COMPLETIONS, json=fields) as response:
        next(response.iter_lines())

    wait_until_idle(engine)
    assert engine.num_aborted == before + 3 * n


@pytest.mark.parametrize("streamed", [True, False])
def test_when_the_client_leaves_before_the_first_token_all_is_aborted(
    client: httpx.Client, engine: ScriptedEngine, streamed: bool
) -> None:
    engine.scripts = [Script([], stall_after=0)]
    fields = {"model": "scripted", "prompt": ["a", "b"], "stream": streamed}

    with pytest.raises(httpx.ReadTimeout):
        client.post(COMPLETIONS, json=fields, timeout=httpx.Timeout(5, read=0.3))

    wait_until_idle(engine)
    assert len(engine.submits) == 2
