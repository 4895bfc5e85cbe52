"""Tools through OpenAI's Python SDK: the protocol's contract, which the smallest model obeys when it must."""

import json

from openai import OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from pydantic import BaseModel, Field

ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Weather(BaseModel):
    """The weather in a city."""

    city: str = Field(max_length=20)


def test_a_required_tool_is_called(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="default", messages=ASKED, tools=[WEATHER], tool_choice="required", temperature=0
    )

    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    first = (answer.choices[0].message.tool_calls or [])[0]
    assert first.type == "function"
    assert first.id
    assert first.function.name == "get_weather"
    assert set(json.loads(first.function.arguments)) == {"city"}


def test_a_named_tool_is_called(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="default",
        messages=ASKED,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
    )

    # of a function that is named the protocol says "stop"
    assert answer.choices[0].finish_reason in ("stop", "tool_calls")
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_a_streamed_call_comes_in_parts(sdk: OpenAI) -> None:
    chunks = list(
        sdk.chat.completions.create(
            model="default",
            messages=ASKED,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            stream=True,
        )
    )

    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert {call.index for call in calls} == {0}
    assert calls[0].id
    assert calls[0].type == "function"
    assert calls[0].function is not None
    assert calls[0].function.name == "get_weather"
    assert all(call.id is None for call in calls[1:])
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert set(json.loads(arguments)) == {"city"}


def test_parse_gives_arguments_of_the_clients_type(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.parse(
        model="default",
        messages=ASKED,
        tools=[pydantic_function_tool(Weather)],
        tool_choice="required",
        temperature=0,
    )

    calls = answer.choices[0].message.tool_calls or []
    assert isinstance(calls[0].function.parsed_arguments, Weather)


def test_the_stream_helper_tells_of_arguments(sdk: OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="default",
        messages=ASKED,
        tools=[pydantic_function_tool(Weather)],
        tool_choice="required",
        temperature=0,
    ) as stream:
        types = {event.type for event in stream}
        calls = stream.get_final_completion().choices[0].message.tool_calls or []

    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= types
    assert isinstance(calls[0].function.parsed_arguments, Weather)


def test_an_answer_follows_the_tools_result(sdk: OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
    }
    messages: list[ChatCompletionMessageParam] = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},  # type: ignore[list-item,typeddict-item]
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees."},
    ]

    answer = sdk.chat.completions.create(
        model="default", messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=32, temperature=0
    )

    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls
