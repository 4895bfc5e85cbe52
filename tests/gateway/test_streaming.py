"""Streams: the order of chunks, whole characters, stop strings, failures, and clients that leave."""

import time

import httpx
import pytest

from engine.errors import EngineDied
from gateway.conversation.prompt import Prompts
from gateway.settings import Settings
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import (
    CHAT,
    body,
    chat,
    choices_of,
    content_of,
    error_of,
    finish_of,
    stream,
)
from tests.live import LiveServer, live_server, scripted_services


def say(engine: ScriptedEngine, tokenizer: ByteTokenizer, *pieces: str | bytes) -> None:
    """Script one answer for every choice."""
    engine.scripts = [Script([tokenizer.id_of(piece) for piece in pieces])]


def wait_until_idle(engine: ScriptedEngine) -> None:
    deadline = time.monotonic() + 5
    while engine.num_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.num_running == 0, "the engine still runs what nobody reads"


def test_the_stream_says_utf8_and_forbids_caches(client: httpx.Client) -> None:
    response = chat(client, stream=True)

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "no-cache" in response.headers["cache-control"]
    assert response.headers["x-accel-buffering"] == "no"
    assert "\r" not in response.text


def test_each_choice_begins_with_its_role_and_ends_with_an_empty_delta(client: httpx.Client) -> None:
    events = stream(client)

    deltas = [choice["delta"] for choice in choices_of(events)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:-1] == [{"content": "Hello"}, {"content": ", "}, {"content": "world"}]
    assert deltas[-1] == {}
    assert events[-1] == "[DONE]"


def test_all_chunks_are_of_one_answer(client: httpx.Client) -> None:
    chunks = stream(client)[:-1]

    keys = ("id", "created", "model", "system_fingerprint", "object")
    assert len({tuple(chunk[key] for key in keys) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all(choice["logprobs"] is None for choice in choices_of(chunks))


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 8])
def test_every_end_is_told_once_after_all_text(client: httpx.Client, max_tokens: int) -> None:
    events = stream(client, max_tokens=max_tokens)
    whole = chat(client, max_tokens=max_tokens).json()["choices"][0]

    assert finish_of(events) == [whole["finish_reason"]]
    assert content_of(events) == whole["message"]["content"]
    assert choices_of(events)[-1]["delta"] == {}


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {}},
                                     {"stream_options": {"include_usage": None}}])  # fmt: skip
def test_without_being_asked_no_chunk_has_usage(client: httpx.Client, options: dict[str, object]) -> None:
    assert all(chunk["choices"] and "usage" not in chunk for chunk in stream(client, **options)[:-1])


@pytest.mark.parametrize("n", [1, 2])
def test_usage_comes_last_and_equals_the_whole_answers(
    client: httpx.Client, engine: ScriptedEngine, n: int
) -> None:
    engine.num_cached_tokens = 5

    *chunks, last, done = stream(client, n=n, stream_options={"include_usage": True})

    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], chat(client, n=n).json()["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["usage"]["completion_tokens"] == 3 * n
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 5, "cache_write_tokens": 16}


def test_no_delta_holds_half_a_character(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "ok ", b"\xf0\x9f", b"\x8d", b"\x95", " end")

    events = stream(client)

    assert content_of(events) == "ok 🍕 end" == chat(client).json()["choices"][0]["message"]["content"]
    assert not any("\ufffd" in choice["delta"].get("content", "") for choice in choices_of(events))


def test_an_answer_cut_inside_a_character_drops_it_streamed_or_not(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "ok ", b"\xf0\x9f", b"\x8d\x95")

    assert content_of(stream(client, max_tokens=2)) == "ok "
    assert chat(client, max_tokens=2).json()["choices"][0]["message"]["content"] == "ok "


def test_a_leading_space_is_kept(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, " leading", " x")

    assert content_of(stream(client)) == " leading x"
    assert chat(client).json()["choices"][0]["message"]["content"] == " leading x"


def test_no_part_of_a_stop_string_is_sent(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "A", "B", "C", "DE", "F", "G")

    events = stream(client, stop="CDEF")

    assert (content_of(events), finish_of(events)) == ("AB", ["stop"])
    assert chat(client, stop="CDEF").json()["choices"][0]["message"]["content"] == "AB"
    wait_until_idle(engine)
    assert len(engine.aborts) == 2


def test_held_text_that_is_no_stop_string_after_all_is_sent(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "A", "B", "C", "DE", "X")

    assert content_of(stream(client, stop="CDEF")) == "ABCDEX"
    assert content_of(stream(client, stop="CDEF", max_tokens=4)) == "ABCDE"


def test_a_stop_string_may_be_kept(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "A", "BC", "D")

    assert content_of(stream(client, stop=["B"], include_stop_str_in_output=True)) == "AB"


def test_text_goes_out_as_soon_as_it_cannot_begin_a_stop_string(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "I ", "am ", "fine ", "today")

    deltas = [choice["delta"] for choice in choices_of(stream(client, stop="Z" * 30))]

    assert [delta.get("content") for delta in deltas] == ["", "I ", "am ", "fine ", "today", None]


def test_below_min_tokens_no_stop_string_ends_the_answer(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "e", "a", "e", "b")

    assert content_of(stream(client, stop="e", min_tokens=1)) == "ea"


def test_choices_that_end_at_different_times_are_all_complete(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    texts = ["a", "abcdef", "", "abababab"]
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in text]) for text in texts]

    events = stream(client, n=4, stop="d", stream_options={"include_usage": True})

    assert [content_of(events, index) for index in range(4)] == ["a", "abc", "", "abababab"]
    assert [finish_of(events, index) for index in range(4)] == [["stop"]] * 4
    assert events[-2]["usage"]["completion_tokens"] == 1 + 4 + 0 + 8


def test_joined_logprobs_are_the_text(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, " that", "\n", "是", b"\xe2\x82", b"\xac")

    events = stream(client, logprobs=True, stop="zzz")
    told = [entry for choice in choices_of(events) for entry in (choice["logprobs"] or {}).get("content", ())]

    assert [entry["token"] for entry in told] == [" that", "\n", "是", r"bytes:\xe2\x82", r"bytes:\xac"]
    assert b"".join([bytes(entry["bytes"]) for entry in told]).decode() == content_of(events)
    assert told == chat(client, logprobs=True).json()["choices"][0]["logprobs"]["content"]


def test_a_token_that_ends_the_answer_has_one_logprob(client: httpx.Client) -> None:
    events = stream(client, logprobs=True, max_tokens=2)

    told = [(choice["logprobs"] or {}).get("content", []) for choice in choices_of(events)]
    assert [len(entries) for entries in told] == [0, 1, 1, 0]


def test_a_failure_in_the_middle_is_one_error_event_and_the_end(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in "abcdef"], fail_after=3)]
    engine.failure = EngineDied("/root/engine.py line 7")

    *chunks, error = stream(client)

    assert content_of(chunks) == "abc"
    assert finish_of(chunks) == []
    assert error["error"]["code"] == "engine_unavailable"
    assert ".py" not in error["error"]["message"]
    assert chat(client).status_code == 503
    say(engine, tokenizer, "fine")
    assert content_of(stream(client)) == "fine"


def test_a_request_that_fails_validation_is_no_stream(client: httpx.Client, engine: ScriptedEngine) -> None:
    long = [{"role": "user", "content": "word " * 2000}]

    streamed = error_of(chat(client, messages=long, stream=True), 400)

    assert streamed == error_of(chat(client, messages=long), 400)
    assert streamed["code"] == "context_length_exceeded"
    assert engine.submits == []


def test_an_idle_stream_is_kept_alive_by_comments(prompts: Prompts) -> None:
    silent = ScriptedEngine([Script([], stall_after=0)], num_computed=7)
    settings = Settings.model_validate({"server": {"ping_seconds": 0.02}})

    with (
        live_server(scripted_services(silent, prompts), settings) as live,
        httpx.stream("POST", live.url + CHAT, json=body(stream=True)) as response,
    ):
        assert next(response.iter_lines()) == ': keep-alive {"prompt_tokens":21,"computed":7}'


def test_an_answer_that_pauses_says_no_more_of_its_prompt(prompts: Prompts, tokenizer: ByteTokenizer) -> None:
    pausing = ScriptedEngine([Script([tokenizer.id_of("x")], stall_after=1)], num_computed=7)
    settings = Settings.model_validate({"server": {"ping_seconds": 0.02}})

    with (
        live_server(scripted_services(pausing, prompts), settings) as live,
        httpx.stream("POST", live.url + CHAT, json=body(stream=True)) as response,
    ):
        comments = (line for line in response.iter_lines() if line.startswith(":"))
        assert ": keep-alive" in (next(comments), next(comments))


def test_an_engine_that_does_not_answer_keeps_no_stream_from_its_comments(prompts: Prompts) -> None:
    silent = ScriptedEngine([Script([], stall_after=0)], cache_failure=EngineDied("gone"))
    settings = Settings.model_validate({"server": {"ping_seconds": 0.02}})

    with (
        live_server(scripted_services(silent, prompts), settings) as live,
        httpx.stream("POST", live.url + CHAT, json=body(stream=True)) as response,
    ):
        assert next(response.iter_lines()) == ": keep-alive"


@pytest.mark.parametrize("n", [1, 4])
def test_when_the_client_leaves_the_stream_every_choice_is_aborted(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer, n: int
) -> None:
    engine.scripts = [Script([tokenizer.id_of("x")] * 3000)]
    engine.step_seconds = 0.005
    before = engine.num_aborted

    with client.stream("POST", CHAT, json=body(stream=True, n=n)) as response:
        next(response.iter_lines())

    wait_until_idle(engine)
    assert engine.num_aborted == before + n


@pytest.mark.parametrize("streamed", [True, False])
def test_when_the_client_leaves_before_the_first_token_the_request_is_aborted(
    server: LiveServer, engine: ScriptedEngine, streamed: bool
) -> None:
    engine.scripts = [Script([], stall_after=0)]

    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + CHAT, json=body(stream=streamed), timeout=httpx.Timeout(5, read=0.3))

    wait_until_idle(engine)
    assert len(engine.submits) == 1
