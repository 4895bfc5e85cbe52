"""Completion requests: which are taken, and where the others point."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.completion_limits import MAX_SEQUENCES
from gateway.wire.completion_request import MAX_PROMPTS, CompletionRequest
from gateway.wire.parse import parse_completion_request
from gateway.wire.unserved import COMPLETION_HINTS, UNSERVED_COMPLETIONS

IDS = [[1, 2], [3]]


def parse(**fields: Any) -> CompletionRequest:
    body = {"model": "m", "prompt": "a"} | fields
    return parse_completion_request(json.dumps(body).encode())[0]


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]), (["a"], ["a"]), (["a", "b"], ["a", "b"]), ([1, 2, 3], [[1, 2, 3]]), (IDS, IDS),
        ([[0]], [[0]]), (["x"] * MAX_PROMPTS, ["x"] * MAX_PROMPTS), ([-1], [[-1]]),
    ],
)  # fmt: skip
def test_every_form_of_prompts_is_taken(prompt: object, prompts: object) -> None:
    assert parse(prompt=prompt).prompt == prompts


@pytest.mark.parametrize(
    "prompt",
    [
        "", [""], [], [[]], ["a", ""], [[1], []], ["a", 1], ["a", [1]], [[1], 2], [[[1]]], [True], [[True]],
        [1, True], [1.0], [1, 1.5], [None], [[None]], [["a"]], 5, 1.5, True, {"a": 1}, [{}],
        ["x"] * (MAX_PROMPTS + 1), [[1]] * (MAX_PROMPTS + 1), [[[[[1]]]]], None,
    ],
    ids=lambda prompt: repr(prompt)[:30],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(prompt: object) -> None:
    error = refusal(prompt=prompt)

    assert (error.status, (error.param or "").split(".")[0]) == (400, "prompt")
    assert error.message.isprintable()
    assert len(error.message) < 300


def test_an_empty_prompt_among_others_is_named_by_its_place() -> None:
    assert refusal(prompt=["a", "", "b"]).param == "prompt.1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1), ("logprobs", 0), ("logprobs", 20), ("best_of", 1), ("best_of", 16), ("echo", True),
        ("n", 1), ("stop", ["x"]), ("prompt_logprobs", 0), ("prompt_logprobs", 20), ("priority", 0),
        ("priority", -(2**31)), ("priority", 2**31 - 1), ("temperature", 0), ("user", "u"), ("top_k", 5),
        ("repetition_penalty", 1.2), ("ignore_eos", True), ("cache_salt", "s"), ("seed", -1),
        ("use_beam_search", True), ("use_beam_search", False), ("length_penalty", 1), ("length_penalty", 1.0),
        ("early_stopping", False), ("min_tokens", 16),
    ],
)  # fmt: skip
def test_values_in_range_are_taken(name: str, value: object) -> None:
    assert getattr(parse(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1), ("max_tokens", 2**63), ("max_tokens", 1.5), ("max_tokens", "8"),
        ("max_tokens", 10**40),
        ("logprobs", -1), ("logprobs", 21), ("logprobs", 10**6), ("logprobs", True), ("logprobs", 1.5),
        ("best_of", 0), ("best_of", 17), ("best_of", True), ("echo", 1), ("echo", "yes"), ("n", 0), ("n", 17),
        ("prompt_logprobs", -1), ("prompt_logprobs", 21), ("prompt_logprobs", True),
        ("prompt_logprobs", 10**6),
        ("priority", 2**31), ("priority", -(2**31) - 1), ("priority", 0.5), ("priority", True),
        ("temperature", 2.1), ("top_p", 0), ("stop", [""]), ("logit_bias", {"5": 101}), ("cache_salt", ""),
        ("beam_width", 0), ("beam_width", 17), ("length_penalty", 11), ("length_penalty", "1"),
        ("early_stopping", "always"), ("early_stopping", 1), ("use_beam_search", 1), ("min_tokens", 17),
        ("min_tokens", 10**30), ("user", 5), ("stream_options", {}),
    ],
)  # fmt: skip
def test_a_value_out_of_range_or_type_is_named(name: str, value: object) -> None:
    error = refusal(**{name: value})

    assert (error.status, error.param) == (400, name)
    assert error.message.isprintable()
    assert len(error.message) < 400


@pytest.mark.parametrize(
    "name", sorted({*CompletionRequest.model_fields, *COMPLETION_HINTS} - {"model", "prompt"})
)
def test_an_explicit_null_equals_leaving_the_field_out(name: str) -> None:
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize("name", sorted(UNSERVED_COMPLETIONS))
def test_a_field_that_is_not_served_is_refused_by_name(name: str) -> None:
    error = refusal(**{name: {"something": "said"}})

    assert (error.param, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in UNSERVED_COMPLETIONS.items() for value in values],
    ids=repr,
)
def test_a_value_that_says_nothing_is_taken(name: str, value: object) -> None:
    assert parse(**{name: value}) == parse()


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_what_must_be_there_is_named(missing: str) -> None:
    body = {"model": "m", "prompt": "a"}
    del body[missing]

    with pytest.raises(InvalidRequest) as caught:
        parse_completion_request(json.dumps(body).encode())

    assert caught.value.param == missing


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "use_beam_search": True}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"prompt": ["a", "b"], "cache": {"explain": True}}, "cache"),
        ({"prompt": ["a"] * 128, "n": 5}, "prompt"),
        ({"prompt": ["a"] * 128, "best_of": 5}, "prompt"),
    ],
)
def test_fields_that_do_not_go_together_say_so(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_best_of_as_many_as_are_wanted_may_be_streamed() -> None:
    assert parse(best_of=2, n=2, stream=True).num_run == 2


def test_as_many_answers_as_may_be_are_taken() -> None:
    assert len(parse(prompt=["a"] * 128, n=4).prompt) * 4 == MAX_SEQUENCES


def test_unknown_fields_are_counted() -> None:
    body = {"model": "m", "prompt": "a", "zzz": 1, "prompt_cache_key": "k", "priority": 3}

    assert parse_completion_request(json.dumps(body).encode())[1] == 1
