"""Chat requests: which are taken, and where the others point."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.chat_request import ChatRequest
from gateway.wire.limits import MAX_STOP_CHARACTERS
from gateway.wire.parse import parse_chat_request
from gateway.wire.unserved import CHAT_HINTS, UNSERVED_CHAT

USER = {"role": "user", "content": "a"}


def parse(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [USER]} | fields
    return parse_chat_request(json.dumps(body).encode())[0]


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("temperature", 2), ("temperature", 0.7), ("top_p", 1), ("top_p", 1e-9),
        ("min_p", 0), ("min_p", 1), ("top_k", -1), ("top_k", 0), ("top_k", 9_999_999),
        ("presence_penalty", -2), ("frequency_penalty", 2.0), ("repetition_penalty", 1.3),
        ("seed", 0), ("seed", -1), ("seed", 2**63 - 1), ("seed", -(2**63)), ("n", 1), ("n", 16),
        ("max_tokens", 1), ("max_completion_tokens", 10**9), ("min_tokens", 0),
        ("stop", "x"), ("stop", []), ("stop", ["a"] * 16), ("stop_token_ids", [0]), ("logit_bias", {}),
        ("logit_bias", {"5": 100, "7": -100.0}), ("logprobs", True), ("logprobs", False),
        ("cache_salt", "s"), ("user", "u"), ("metadata", {"k": "v"}), ("ignore_eos", True),
    ],
)  # fmt: skip
def test_values_in_range_are_taken(name: str, value: object) -> None:
    assert getattr(parse(**{name: value}), name) == (["x"] if value == "x" else value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", 999_999.0), ("temperature", "1"),
        ("temperature", True), ("temperature", 10**400), ("top_p", 0), ("top_p", -1.0), ("top_p", 1.1),
        ("min_p", 1.1), ("top_k", -2), ("top_k", 1.5), ("presence_penalty", 2.1), ("frequency_penalty", -3),
        ("repetition_penalty", 0), ("repetition_penalty", 1e-300),
        ("repetition_penalty", -1), ("seed", 2**63), ("seed", 2**64),
        ("seed", -(2**63) - 1), ("seed", 1.5), ("seed", "1"), ("n", 0), ("n", 17), ("n", -1), ("n", True),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", 8.0), ("max_tokens", "8"),
        ("max_completion_tokens", 0), ("min_tokens", -1), ("stop", ""), ("stop", [""]), ("stop", ["a", ""]),
        ("stop", 7), ("stop", ["a"] * 17), ("stop", "x" * (MAX_STOP_CHARACTERS + 1)),
        ("stop_token_ids", list(range(257))), ("stop_token_ids", 5), ("logit_bias", []),
        ("logit_bias", {"-1": 5}), ("logit_bias", {"abc": 5}),
        ("logit_bias", {"5": 101}), ("logit_bias", {"٥": 1}), ("logit_bias", {"1" * 5000: 1}),
        ("logit_bias", {str(each): 1 for each in range(1025)}), ("logprobs", 1), ("logprobs", "true"),
        ("cache_salt", ""), ("cache_salt", 5), ("user", 5), ("stream", "yes"), ("stream", 1),
        ("messages", []), ("messages", None), ("messages", "hi"), ("messages", {}), ("model", None),
        ("model", 5), ("messages", [USER] * 4097), ("metadata", "x"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_or_type_is_named(name: str, value: object) -> None:
    error = refusal(**{name: value})

    assert error.status == 400
    assert (error.param or "").split(".")[0] == name
    assert error.message.isprintable()
    assert len(error.message) < 400


@pytest.mark.parametrize("name", sorted({*ChatRequest.model_fields, *CHAT_HINTS} - {"model", "messages"}))
def test_an_explicit_null_equals_leaving_the_field_out(name: str) -> None:
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize("name", sorted(UNSERVED_CHAT))
def test_a_field_that_is_not_served_is_refused_by_name(name: str) -> None:
    error = refusal(**{name: {"something": "said"}})

    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in UNSERVED_CHAT.items() for value in values], ids=repr
)
def test_a_value_that_says_nothing_is_taken(name: str, value: object) -> None:
    assert parse(**{name: value}) == parse()


@pytest.mark.parametrize(
    ("name", "value"), [("store", True), ("store", 0), ("functions", [{}]), ("best_of", True)]
)
def test_a_value_that_only_resembles_nothing_is_refused(name: str, value: object) -> None:
    assert refusal(**{name: value}).param == name


def test_unknown_fields_are_counted_and_hints_are_not() -> None:
    body = {"model": "m", "messages": [USER], "zzz": 1, "yyy": [[]], "prompt_cache_key": "k", "user": "u"}

    assert parse_chat_request(json.dumps(body).encode())[1] == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_fields_that_need_others_say_so(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_continuing_and_beginning_a_message_exclude_each_other() -> None:
    messages = [USER, {"role": "assistant", "content": "The answer is"}]

    parse(messages=messages, continue_final_message=True, add_generation_prompt=False)
    parse(messages=messages, continue_final_message=True)
    error = refusal(messages=messages, continue_final_message=True, add_generation_prompt=True)

    assert error.param == "continue_final_message"


def test_max_completion_tokens_wins() -> None:
    assert parse(max_tokens=50, max_completion_tokens=3).token_limit == 3
    assert parse(max_tokens=50).token_limit == 50
    assert parse().token_limit is None


def test_a_missing_model_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(b'{"messages":[]}')

    assert caught.value.param == "model"
