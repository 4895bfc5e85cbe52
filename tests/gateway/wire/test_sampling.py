"""From the client's wishes to the engine's parameters."""

import json
from typing import Any

import pytest

from engine.sequence import SamplingParams
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.wire.chat_request import ChatRequest
from gateway.wire.parse import parse_chat_request
from gateway.wire.sampling import answer_limit, to_sampling_params
from tests.fakes import engine_info


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]} | fields
    return parse_chat_request(json.dumps(body).encode())[0]


def sampling(**fields: Any) -> SamplingParams:
    return to_sampling_params(
        chat(**fields), max_tokens=8, vocab_size=100, end_token_ids=(2, 0), fresh_seed=lambda: 2**64 - 1
    )


def test_nothing_asked_means_the_protocols_defaults() -> None:
    assert sampling() == SamplingParams(max_tokens=8, stop_token_ids=(2, 0), seed=2**64 - 1)


def test_zero_is_a_value_and_not_an_absence() -> None:
    params = sampling(temperature=0, seed=0, min_tokens=0, logprobs=True, top_logprobs=0)

    assert (params.temperature, params.seed, params.logprobs) == (0, 0, 0)


@pytest.mark.parametrize(("asked", "given"), [(-1, None), (0, None), (1, 1), (5, 5), (9_999_999, 100)])
def test_top_k_is_at_most_the_vocabulary_and_may_be_off(asked: int, given: int | None) -> None:
    assert sampling(top_k=asked).top_k == given


def test_a_negative_seed_becomes_one_of_64_bits() -> None:
    assert sampling(seed=-1).seed == 2**64 - 1
    assert sampling(seed=-(2**63)).seed == 2**63


def test_stop_tokens_are_the_models_and_the_clients() -> None:
    assert sampling(stop_token_ids=[7, 2]).stop_token_ids == (2, 0, 7)
    assert sampling(stop_token_ids=[7], ignore_eos=True).stop_token_ids == (7,)


def test_biases_keep_their_tokens() -> None:
    assert sampling(logit_bias={"5": 1, "99": -2.5}).logit_bias == {5: 1.0, 99: -2.5}


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"logit_bias": {"100": 5}}, "logit_bias"), ({"stop_token_ids": [100]}, "stop_token_ids"),
     ({"stop_token_ids": [-1]}, "stop_token_ids")],
)  # fmt: skip
def test_ids_outside_the_vocabulary_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sampling(**fields)

    assert caught.value.param == param
    assert "0 to 99" in caught.value.message


def test_without_a_limit_the_answer_may_fill_what_is_left() -> None:
    assert answer_limit(chat(), engine_info(160), 60) == 100


def test_an_exact_fit_is_served_and_one_more_is_not() -> None:
    info = engine_info(160)

    assert answer_limit(chat(max_tokens=4), info, 156) == 4
    with pytest.raises(ContextTooLong, match=r"156 tokens.*max_tokens asks for 5.*160") as caught:
        answer_limit(chat(max_tokens=5), info, 156)

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")


@pytest.mark.parametrize("fields", [{}, {"max_completion_tokens": 1}])
def test_a_prompt_that_leaves_no_room_for_one_token_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ContextTooLong) as caught:
        answer_limit(chat(**fields), engine_info(160), 160)

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
