"""POST /v1/chat/completions, whole answers: what is said, what reaches the engine, what is refused."""

import time
from typing import Any

import httpx
import pytest

from engine.errors import EngineDied, EngineError, EngineStopping, RequestRefused
from gateway.prefix_trace import trace_of
from gateway.store.usage import UsageRow
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import CHAT, body, chat, error_of
from tests.live import LiveServer

NESTED = b"[" * 100_000 + b"]" * 100_000
PLAIN = b'"model":"scripted","messages":[{"role":"user","content":"a"}]'


def content(client: httpx.Client, **fields: Any) -> str:
    response = chat(client, **fields)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def test_an_answer_has_every_field_that_the_protocol_names(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.num_cached_tokens = 7
    before = int(time.time())

    answer = chat(client).json()

    assert answer["id"].startswith("chatcmpl-")
    assert before <= answer.pop("created") <= before + 5
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    num_prompt_tokens = len(engine.prompts[0])
    assert answer["usage"] == {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": 3,
        "total_tokens": num_prompt_tokens + 3,
        "prompt_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 14},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_usage_keeps_the_names_of_a_prompts_blocks_but_for_side_requests(
    client: httpx.Client, server: LiveServer, engine: ScriptedEngine
) -> None:
    text = {"messages": [{"role": "user", "content": "a" * 50}]}

    chat(client, **text)
    chat(client, **text, cache="read-only")
    wait_for_rows(server, [submit.request_id for submit in engine.submits])

    kept, none = rows_of(server, [submit.request_id for submit in engine.submits])
    submit = engine.submits[0]
    assert kept.prefix_trace == trace_of(submit.namespace, submit.prompt, engine.info.block_size)
    assert len(kept.prefix_trace) == 4 * (len(engine.prompts[0]) // 16) > 0
    assert none.prefix_trace is None


def rows_of(server: LiveServer, ids: list[str]) -> list[UsageRow]:
    by_id = {row.completion_id: row for row in server.services.usage.waiting}
    return [by_id[each] for each in ids if each in by_id]


def wait_for_rows(server: LiveServer, ids: list[str]) -> None:
    """A row is added when the last byte has gone out, which may be after it has come in."""
    deadline = time.monotonic() + 10
    while len(rows_of(server, ids)) < len(ids):
        assert time.monotonic() < deadline, "no rows of usage"
        time.sleep(0.01)


def test_cached_tokens_are_told_when_there_are_none(client: httpx.Client) -> None:
    details = chat(client).json()["usage"]["prompt_tokens_details"]

    assert details == {"cached_tokens": 0, "cache_write_tokens": 21}


def test_an_alias_answers_as_the_served_model(client: httpx.Client) -> None:
    assert chat(client, model="gpt-4o").json()["model"] == "scripted"


@pytest.mark.parametrize("model", ["nobody", "", 'a"} 1\nevil{x="', "Scripted"])
def test_a_model_that_nobody_has_is_a_404(client: httpx.Client, engine: ScriptedEngine, model: str) -> None:
    error = error_of(chat(client, model=model), 404)

    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "scripted" in error["message"]
    assert engine.submits == []


def test_n_answers_cost_one_prompt(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in text]) for text in ("a", "bcd", "ef")]

    answer = chat(client, n=3).json()

    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "bcd", "ef"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["usage"]["prompt_tokens"] == len(engine.prompts[0])


@pytest.mark.parametrize("top_logprobs", [None, 0, 2])
def test_logprobs_have_one_entry_for_each_token(client: httpx.Client, top_logprobs: int | None) -> None:
    answer = chat(client, logprobs=True, top_logprobs=top_logprobs).json()

    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["Hello", ", ", "world"]
    assert all(entry["logprob"] <= 0 for entry in entries)
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)
    assert {len(entry["top_logprobs"]) for entry in entries} == {top_logprobs or 0}


def test_an_impossible_token_has_a_finite_logprob(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.logprob = float("-inf")

    entry = chat(client, logprobs=True).json()["choices"][0]["logprobs"]["content"][0]

    assert entry["logprob"] == -9999.0


@pytest.mark.parametrize(
    ("limits", "text"),
    [({"max_tokens": 1}, "Hello"), ({"max_completion_tokens": 2, "max_tokens": 50}, "Hello, ")],
)
def test_a_limit_cuts_the_answer(client: httpx.Client, limits: dict[str, int], text: str) -> None:
    choice = chat(client, **limits).json()["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "length")


def test_without_a_limit_the_answer_may_fill_the_context(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    chat(client)

    assert engine.submits[0].sampling.max_tokens == 4096 - len(engine.prompts[0])


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": [{"role": "user", "content": "word " * 900}]}, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": "x" * 900_000}]}, "context_length_exceeded", "messages"),
        ({"max_tokens": 999_999}, "context_length_exceeded", "max_tokens"),
        ({"logit_bias": {"999999999": 5}}, None, "logit_bias"),
        ({"stop_token_ids": [1024]}, None, "stop_token_ids"),
        ({"tools": [{"type": "function"}]}, None, "tools.0.function"),
        ({"response_format": {"type": "json_schema"}}, None, "response_format.json_schema"),
        ({"temperature": 3}, None, "temperature"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_bad_request_is_a_400_and_the_next_one_is_fine(
    client: httpx.Client,
    engine: ScriptedEngine,
    fields: dict[str, Any],
    code: str,
    param: str,
    streamed: bool,
) -> None:
    error = error_of(chat(client, stream=streamed, **fields), 400)

    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert engine.submits == []
    assert content(client) == "Hello, world"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{" + PLAIN + b',"temperature":NaN}',
        b"{" + PLAIN + b',"temperature":1e999}',
        b"{" + PLAIN + b',"logit_bias":{"5":Infinity}}',
        b"{" + PLAIN + b',"zzz":' + NESTED + b"}",
        b'{"model":"scripted","tools":' + NESTED + b"}",
        NESTED,
        b'{"model":"scripted","messages":[{"role":"user","content":"x \\ud83d"}]}',
        b'{"model":"scripted","stream":true,"messages":[{"role":"user","content":"x \\ude00 y"}]}',
        b"{" + PLAIN + b',"stop":"\\ud83d"}',
        b'{"model":"scripted"}',
        b'{"model":"scripted","messages":[null]}',
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_a_malformed_body_is_a_400(client: httpx.Client, engine: ScriptedEngine, raw: bytes) -> None:
    error = error_of(client.post(CHAT, content=raw), 400)

    assert error["type"] == "invalid_request_error"
    assert not any(leak in error["message"] for leak in ("Traceback", ".py", "/root", "Error("))
    assert engine.submits == []


def test_a_pair_of_surrogates_is_one_character(client: httpx.Client, engine: ScriptedEngine) -> None:
    raw = b'{"model":"scripted","messages":[{"role":"user","content":"\\ud83c\\udf55"}]}'

    assert client.post(CHAT, content=raw).status_code == 200
    assert "🍕".encode() in bytes(each for each in engine.prompts[0] if each < 256)


def test_another_content_type_is_a_415(client: httpx.Client) -> None:
    error_of(client.post(CHAT, data={"model": "scripted"}), 415)


def test_requests_without_a_seed_draw_different_ones(client: httpx.Client, engine: ScriptedEngine) -> None:
    for seed in (None, None, 0, 0):
        chat(client, seed=seed)

    fresh, other, *fixed = [submit.sampling.seed for submit in engine.submits]
    assert fresh != other
    assert fixed == [0, 0]


def test_a_fault_of_ours_tells_nothing_of_it(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [Script([], fail_after=0)]
    engine.failure = RuntimeError("/root/secret.py")

    response = chat(client)

    assert error_of(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"].startswith("req-")


def test_a_fault_of_ours_in_a_stream_is_told_before_the_line_is_cut(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.scripts = [Script([], fail_after=0)]
    engine.failure = RuntimeError("/root/secret.py")

    with client.stream("POST", CHAT, json=body(stream=True)) as response:
        lines = response.iter_lines()

        assert "internal_error" in next(lines)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (EngineDied("x"), 503, "engine_unavailable"),
        (EngineStopping("x"), 503, "engine_unavailable"),
        (RequestRefused("too long for the pool"), 400, "request_refused"),
    ],
)
def test_the_engines_failures_have_a_status(
    client: httpx.Client, engine: ScriptedEngine, failure: EngineError, status: int, code: str
) -> None:
    engine.scripts = [Script([], fail_after=0)]
    engine.failure = failure

    response = chat(client)

    assert error_of(response, status)["code"] == code
    assert ("retry-after" in response.headers) == (status == 503)


def test_while_the_engine_is_replaced_requests_are_asked_to_come_again(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.is_ready = False

    response = chat(client)

    assert error_of(response, 503)["code"] == "engine_unavailable"
    assert int(response.headers["retry-after"]) > 0
    assert engine.submits == []


def test_many_at_once_do_not_mix(server: LiveServer, client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.step_seconds = 0.001
    with (
        httpx.Client(base_url=server.url) as other,
        other.stream("POST", CHAT, json=body(stream=True)) as one,
    ):
        whole = chat(client, logprobs=True).json()

        assert len(whole["choices"][0]["logprobs"]["content"]) == 3
        assert '"logprobs":{' not in one.read().decode()
