"""Beam search in requests for text: what it means, and what cannot be heeded beside it. On both endpoints."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.sequence import MAX_BEAM_WIDTH, BeamParams
from gateway.errors import InvalidRequest
from gateway.wire.parse import parse_chat_request, parse_completion_request
from gateway.wire.text_request import TextRequest

Parse = Callable[..., TextRequest]


def _chat(**fields: Any) -> TextRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]} | fields
    return parse_chat_request(json.dumps(body).encode()).chat


def _completion(**fields: Any) -> TextRequest:
    return parse_completion_request(json.dumps({"model": "m", "prompt": "a"} | fields).encode()).completion


@pytest.fixture(params=[_chat, _completion], ids=["chat", "completions"])
def parse(request: pytest.FixtureRequest) -> Parse:
    made: Parse = request.param
    return made


@pytest.mark.parametrize(
    ("fields", "beam"),
    [
        ({}, BeamParams(width=2)),
        ({"n": 5}, BeamParams(width=5)),
        ({"beam_width": 1}, BeamParams(width=1)),
        ({"beam_width": MAX_BEAM_WIDTH, "n": 3}, BeamParams(width=MAX_BEAM_WIDTH)),
        ({"length_penalty": 0, "early_stopping": True},
         BeamParams(width=2, length_penalty=0.0, early_stopping=True)),
        ({"length_penalty": -1.5, "early_stopping": "never"},
         BeamParams(width=2, length_penalty=-1.5, early_stopping="never")),
        ({"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "stop": []}, BeamParams(width=2)),
        ({"temperature": 1.0, "top_k": 0, "stop_token_ids": [3]}, BeamParams(width=2)),
    ],
)  # fmt: skip
def test_a_search_is_what_was_asked_for(parse: Parse, fields: dict[str, Any], beam: BeamParams) -> None:
    assert parse(use_beam_search=True, **fields).beam == beam


def test_without_one_there_is_none(parse: Parse) -> None:
    assert parse().beam is None
    assert parse(use_beam_search=False, length_penalty=1.0, early_stopping=False).beam is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 0.7), ("top_p", 0.9), ("top_k", 5), ("min_p", 0.1), ("stop", "x")],
)
def test_what_cannot_be_heeded_beside_a_search_is_refused_by_name(
    parse: Parse, name: str, value: object
) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} cannot be heeded with use_beam_search") as caught:
        parse(use_beam_search=True, **{name: value})

    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    parse(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("beam_width", 1), ("beam_width", 4), ("length_penalty", 0.5), ("early_stopping", True),
     ("early_stopping", "never")],
)  # fmt: skip
def test_what_only_a_search_heeds_needs_one(parse: Parse, name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} needs use_beam_search") as caught:
        parse(**{name: value})

    assert caught.value.param == name


def test_more_answers_than_hypotheses_are_refused(parse: Parse) -> None:
    with pytest.raises(InvalidRequest, match="n is 3") as caught:
        parse(use_beam_search=True, n=3, beam_width=2)

    assert caught.value.param == "n"


def test_the_best_of_several_searches_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="beam_width") as caught:
        _completion(use_beam_search=True, best_of=2)

    assert caught.value.param == "best_of"
