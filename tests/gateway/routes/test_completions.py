"""POST /v1/completions, whole answers: what is said, what reaches the engine, what is refused."""

from typing import Any

import httpx
import pytest
from openai.types import Completion

from engine.cache_messages import CacheReport
from engine.sequence import BeamParams
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import COMPLETIONS, complete, error_of, row_of
from tests.live import LiveServer


def say(engine: ScriptedEngine, tokenizer: ByteTokenizer, *texts: str) -> None:
    """One script a choice, a letter a token."""
    engine.scripts = [Script([tokenizer.id_of(letter) for letter in text]) for text in texts]


def answer(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A whole completion, which the SDK must be able to read."""
    response = complete(client, **fields)
    assert response.status_code == 200, response.text
    Completion.model_validate(response.json())
    return dict(response.json())


def texts(told: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in told["choices"]]


def test_an_answer_has_every_field_that_the_protocol_names(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.num_cached_tokens = 2

    told = answer(client)

    assert told["id"].startswith("cmpl-")
    assert isinstance(told.pop("created"), int)
    assert (told["object"], told["model"]) == ("text_completion", "scripted")
    assert told["choices"] == [
        {"index": 0, "text": "Hello, world", "logprobs": None, "finish_reason": "stop"}
    ]
    assert told["usage"]["prompt_tokens"] == 3
    assert told["usage"]["completion_tokens"] == 3
    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 1}
    assert engine.prompts == [list(b"abc")]


def test_text_is_plain_text_and_no_template_stands_around_it(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    answer(client, prompt="<|im_end|>é")

    assert engine.prompts == [list("<|im_end|>é".encode())]


def test_ids_go_to_the_engine_as_they_are(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer(client, prompt=[257, 0, 1023])
    answer(client, prompt=[[5], [6, 7]])

    assert engine.prompts == [[257, 0, 1023], [5], [6, 7]]


def test_the_default_is_sixteen_tokens_or_what_is_left(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer(client)
    answer(client, prompt=[1] * 4090)

    assert [submit.sampling.max_tokens for submit in engine.submits] == [16, 6]


def test_each_prompt_has_its_answers_at_its_place(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "a", "bb", "ccc", "d", "ee", "f")
    engine.num_cached_tokens = 1

    told = answer(client, prompt=["one", "two!", "three"], n=2)

    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3, 4, 5]
    assert texts(told) == ["a", "bb", "ccc", "d", "ee", "f"]
    assert told["usage"]["prompt_tokens"] == 3 + 4 + 5
    assert told["usage"]["completion_tokens"] == 10
    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 9}
    assert [submit.num_choices for submit in engine.submits] == [2, 2, 2]
    assert len({submit.request_id for submit in engine.submits}) == 3


def test_the_best_of_several_are_told_best_first_and_all_are_paid_for(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "aa", "b", "cccc", "dd")
    engine.logprobs = {ord("a"): -3.0, ord("b"): -0.5, ord("c"): -0.2, ord("d"): -2.0}

    told = answer(client, best_of=4, n=2)

    assert texts(told) == ["cccc", "b"]  # by the mean, for the sum would say b
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in told["choices"]] == [None, None]
    assert told["usage"]["completion_tokens"] == 9
    assert (engine.submits[0].num_choices, engine.submits[0].sampling.logprobs) == (4, 0)


def test_the_best_of_each_prompt_stands_at_its_place(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "a", "b", "b", "a")
    engine.logprobs = {ord("a"): -3.0, ord("b"): -0.5}

    told = answer(client, prompt=["x", "y"], best_of=2, logprobs=1)

    assert texts(told) == ["b", "b"]
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert [choice["logprobs"]["tokens"] for choice in told["choices"]] == [["b"], ["b"]]


def test_as_many_as_are_run_come_as_they_are(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "a", "b")
    engine.logprobs = {ord("a"): -3.0, ord("b"): -0.5}

    assert texts(answer(client, best_of=2, n=2)) == ["a", "b"]
    assert engine.submits[0].sampling.logprobs is None


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_logprobs_have_a_place_for_every_token(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer, num_top: int
) -> None:
    engine.scripts = [
        Script([tokenizer.id_of(piece) for piece in (" that", "\n", "是", b"\xe2\x82", b"\xac")])
    ]
    engine.logprobs = {tokenizer.id_of("\n"): float("-inf")}

    choice = answer(client, logprobs=num_top)["choices"][0]

    told = choice["logprobs"]
    assert choice["text"] == " that\n是€"
    assert told["tokens"] == [" that", "\n", "是", r"bytes:\xe2\x82", r"bytes:\xac"]
    assert told["text_offset"] == [0, 5, 6, 7, 7]
    assert told["token_logprobs"] == [-0.5, -9999.0, -0.5, -0.5, -0.5]
    assert all(token in top for token, top in zip(told["tokens"], told["top_logprobs"], strict=True))
    assert len(told["top_logprobs"][0]) == max(1, num_top)
    assert engine.submits[0].sampling.logprobs == num_top


def test_of_two_candidates_with_one_text_the_better_is_told(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    # ids without bytes all have the empty text
    engine.scripts = [Script([1000])]

    told = answer(client, logprobs=3)["choices"][0]["logprobs"]

    assert told["top_logprobs"] == [{"": -0.5}]


def test_every_parameter_reaches_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer(
        client,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={"5": 2},
        seed=9,
        min_tokens=1,
        max_tokens=3,
        stop_token_ids=[8],
        ignore_eos=True,
        n=2,
        priority=-4,
        cache={"mode": "read-only", "priority": "high"},
        user="u",
    )

    (submit,) = engine.submits
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (sampling.repetition_penalty, sampling.logit_bias, sampling.seed) == (1.5, {5: 2.0}, 9)
    assert (sampling.min_tokens, sampling.max_tokens, sampling.stop_token_ids) == (1, 3, (8,))
    assert (submit.num_choices, submit.queue_priority, submit.is_side, submit.priority) == (2, -4, True, 1)


def test_a_stop_string_ends_the_answer_and_may_be_kept(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "abcdef")

    assert texts(answer(client, stop=["cd"])) == ["ab"]
    assert texts(answer(client, stop="cd", include_stop_str_in_output=True)) == ["abcd"]


def test_a_salt_and_a_tenant_set_namespaces_apart_as_in_chat(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    answer(client)
    answer(client, cache_salt="s")

    plain, salted = [submit.namespace for submit in engine.submits]
    assert plain != salted
    assert plain[:16] == salted[:16]


def test_a_beam_search_tells_its_hypotheses(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    say(engine, tokenizer, "best", "next")

    told = answer(client, use_beam_search=True, n=2, beam_width=4, length_penalty=0.8, logprobs=1)

    assert texts(told) == ["best", "next"]
    assert [len(choice["logprobs"]["tokens"]) for choice in told["choices"]] == [4, 4]
    assert told["usage"]["completion_tokens"] == 8
    assert engine.submits[0].num_choices == 2
    assert engine.submits[0].sampling.beam == BeamParams(width=4, length_penalty=0.8)


@pytest.mark.parametrize("num_top", [0, 2])
def test_log_probabilities_of_the_prompt_stand_on_each_choice(
    client: httpx.Client, engine: ScriptedEngine, num_top: int
) -> None:
    engine.logprobs = {ord("b"): -1.5}

    told = answer(client, prompt="abé", n=2, prompt_logprobs=num_top)

    first, second = [choice["prompt_logprobs"] for choice in told["choices"]]
    assert first == second
    assert len(first) == 4
    assert first[0] is None
    rank = 1 if num_top else None
    assert first[1][str(ord("b"))] == {"logprob": -1.5, "rank": rank, "decoded_token": "b"}
    assert [len(each) for each in first[1:]] == [max(1, num_top)] * 3
    assert first[2]["195"]["decoded_token"] == r"bytes:\xc3"
    assert engine.submits[0].sampling.prompt_logprobs == num_top


def test_the_cache_explains_itself(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.report = CacheReport(num_device_tokens=1, num_computed_tokens=2, parted_at=1, reason="parted")

    told = answer(client, cache={"explain": True})

    assert told["cache"]["parted_at"] == {"token": 1, "message": None}
    assert told["cache"]["tokens"]["device"] == 1


def test_a_prompt_that_ends_in_half_a_character_is_continued(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    engine.scripts = [Script([0xAC, ord("x")])]

    assert texts(answer(client, prompt=[0xE2, 0x82])) == ["€x"]
    assert texts(answer(client, prompt=[ord("y"), 0xE2, 0x82], echo=True)) == ["y€x"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": "word " * 900}, "context_length_exceeded", "prompt"),
        ({"prompt": "x" * 900_000}, "context_length_exceeded", "prompt"),
        ({"prompt": ["a", "x" * 900_000]}, "context_length_exceeded", "prompt"),
        ({"prompt": [1] * 4096}, "context_length_exceeded", "prompt"),
        ({"max_tokens": 999_999}, "context_length_exceeded", "max_tokens"),
        ({"prompt": [-1]}, None, "prompt"),
        ({"prompt": [1024]}, None, "prompt"),
        ({"prompt": [10**9]}, None, "prompt"),
        ({"prompt": [10**300]}, None, "prompt"),
        ({"prompt": [[1], [2, -(2**70)]]}, None, "prompt"),
        ({"prompt": ["a", ""]}, None, "prompt.1"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"logit_bias": {"1024": 5}}, None, "logit_bias"),
        ({"logprobs": 10**6, "echo": True}, None, "logprobs"),
        ({"model": "nobody"}, "model_not_found", "model"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_bad_request_is_refused_and_the_next_one_is_fine(
    client: httpx.Client,
    engine: ScriptedEngine,
    fields: dict[str, Any],
    code: str,
    param: str,
    streamed: bool,
) -> None:
    response = complete(client, stream=streamed, **fields)

    error = error_of(response, 404 if param == "model" else 400)
    assert (error["code"], error["param"]) == (code, param)
    assert len(error["message"]) < 400
    assert engine.submits == []
    assert texts(answer(client)) == ["Hello, world"]


def test_more_log_probabilities_of_prompts_than_memory_should_hold_are_refused(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    prompts = [[1] * 4000] * 10

    error = error_of(complete(client, prompt=prompts, prompt_logprobs=20), 400)
    assert error["param"] == "prompt_logprobs"
    assert "524,288" in error["message"]
    assert error_of(complete(client, prompt=prompts, echo=True, logprobs=20), 400)["param"] == "logprobs"
    assert engine.submits == []


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"null", b'{"model":"scripted"}', b'{"model":"scripted","prompt":null}',
        b'{"prompt":"a"}', b'{"model":"scripted","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"scripted","prompt":"a","temperature":NaN}',
        b'{"model":"scripted","prompt":[NaN]}', b'{"model":"scripted","prompt":[1e400]}',
        b'{"model":"scripted","prompt":"\\ud83d"}', b'{"model":"scripted","prompt":["a",{}]}',
        b'{"model":"scripted","prompt":[' + b"1" * 5000 + b"]}",
    ],
    ids=lambda raw: repr(raw[:50]),
)  # fmt: skip
def test_a_malformed_body_is_a_400(client: httpx.Client, engine: ScriptedEngine, raw: bytes) -> None:
    error = error_of(client.post(COMPLETIONS, content=raw), 400)

    assert error["type"] == "invalid_request_error"
    assert engine.submits == []


def test_a_million_prompts_are_refused_at_once(client: httpx.Client, engine: ScriptedEngine) -> None:
    raw = b'{"model":"scripted","prompt":[' + b'"a",' * 240_000 + b'"a"]}'

    error = error_of(client.post(COMPLETIONS, content=raw), 400)

    assert "240001" in error["message"].replace(",", "")
    assert "128" in error["message"]


def test_usage_of_several_prompts_is_one_row_without_a_trace(
    client: httpx.Client, server: LiveServer, engine: ScriptedEngine
) -> None:
    told = answer(client, prompt=["a" * 40, "b" * 40], n=2)

    row = row_of(server, told["id"])
    assert (row.prompt_tokens, row.completion_tokens, row.outcome) == (80, 12, "completed")
    assert row.prefix_trace is None
