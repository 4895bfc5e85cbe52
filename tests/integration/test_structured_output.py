"""The default model held to what clients ask for, through the SDK's own helpers: even the smallest obeys."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

ASKED: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Which city is the capital of France? Answer in JSON."}
]


class City(BaseModel):
    name: str = Field(max_length=20)
    country: Literal["France", "Spain"]
    districts: int = Field(ge=1, le=99)


YES: dict[str, object] = {
    "type": "object",
    "properties": {"yes": {"const": True}},
    "required": ["yes"],
    "additionalProperties": False,
}


def test_parse_gives_a_value_of_the_clients_own_type(openai: OpenAI) -> None:
    answer = openai.chat.completions.parse(
        model="default", messages=ASKED, response_format=City, temperature=0
    )

    parsed = answer.choices[0].message.parsed
    assert parsed is not None
    assert "Paris" in parsed.name
    assert parsed.country == "France"
    assert answer.choices[0].message.refusal is None


def test_the_stream_helper_parses_too(openai: OpenAI) -> None:
    with openai.chat.completions.stream(
        model="default", messages=ASKED, response_format=City, temperature=1, seed=3
    ) as stream:
        events = [event.type for event in stream]
        parsed = stream.get_final_completion().choices[0].message.parsed

    assert parsed is not None
    assert "content.done" in events


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_crowds_with_and_without_a_format_do_not_mix(openai: OpenAI, temperature: float) -> None:
    def ask(place: int) -> str:
        extra = {"regex": "[a-c]{5}"} if place % 2 else {"response_format": {"type": "json_object"}}
        answer = openai.chat.completions.create(
            model="default",
            messages=ASKED,
            max_tokens=60,
            temperature=temperature,
            seed=place,
            extra_body=extra,
        )
        return answer.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(8)))

    assert all(len(text) == 5 and set(text) <= set("abc") for text in texts[1::2])
    assert all(text.startswith("{") for text in texts[::2])


def test_an_answer_that_is_cut_says_so(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="default", messages=ASKED, max_tokens=3, response_format={"type": "json_object"}
    )

    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.choices[0].message.content or "")


def test_a_bad_schema_is_refused_and_the_place_is_named(openai: OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "objekt"}}}
    with pytest.raises(BadRequestError) as found:
        openai.chat.completions.create(
            model="default",
            messages=ASKED,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )

    assert found.value.param == "response_format.json_schema.schema.properties.a"
    assert found.value.code == "invalid_json_schema"


def test_a_model_that_likes_line_breaks_comes_to_an_end(openai: OpenAI) -> None:
    newline = {"198": 100}  # in the default model's vocabulary
    answer = openai.chat.completions.create(
        model="default",
        messages=ASKED,
        temperature=0,
        max_tokens=400,
        logit_bias=newline,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "yes", "schema": YES, "strict": True},
        },
    )

    text = answer.choices[0].message.content or ""
    assert answer.choices[0].finish_reason == "stop"
    assert "\n" * 16 in text
    assert "\n" * 17 not in text
    assert json.loads(text) == {"yes": True}


def test_an_object_may_have_two_hundred_properties_that_may_be_left_out(openai: OpenAI) -> None:
    properties: dict[str, object] = {
        f"some_long_property_{place}": {"type": "string"} for place in range(200)
    }
    schema: dict[str, object] = {"type": "object", "properties": properties, "additionalProperties": False}
    answer = openai.chat.completions.create(
        model="default",
        messages=ASKED,
        temperature=0,
        max_tokens=30,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "many", "schema": schema, "strict": True},
        },
    )

    assert (answer.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize("stream", [True, False])
def test_a_grammar_that_no_answer_satisfies_is_refused_by_the_field_that_sent_it(
    openai: OpenAI, stream: bool
) -> None:
    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(
            model="default", messages=ASKED, stream=stream, extra_body={"grammar": "root ::= root"}
        )

    assert refused.value.param == "grammar"
    assert refused.value.code == "request_refused"
