"""Tools with the default model, far too small to use them well: what is demanded comes all the same."""

import json
from typing import Any

import pytest
from openai import OpenAI

from tests.served import ServedModel

LOOK: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
GO: Any = {"type": "function", "function": {"name": "go_home"}}
ASKED: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "get_weather"}}],
    ids=["required", "named"],
)
def test_a_call_that_is_demanded_comes_and_follows_its_schema(
    openai: OpenAI, live_server: ServedModel, choice: Any
) -> None:
    asked: Any = {
        "model": live_server.model, "messages": ASKED, "tools": [LOOK], "tool_choice": choice,
        "temperature": 0, "parallel_tool_calls": False, "max_tokens": 100,
    }  # fmt: skip

    answer = openai.chat.completions.create(**asked).choices[0]
    with openai.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]

    assert answer.finish_reason == streamed.finish_reason == "tool_calls"
    assert answer.message.content is None
    (call,) = answer.message.tool_calls or []
    arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")
    (again,) = streamed.message.tool_calls or []
    assert again.function.arguments == call.function.arguments  # type: ignore[union-attr]


def test_a_result_goes_back_and_what_was_computed_is_found(openai: OpenAI, live_server: ServedModel) -> None:
    asked: Any = {"model": live_server.model, "tools": [LOOK, GO], "temperature": 0, "max_tokens": 100}
    first = openai.chat.completions.create(
        messages=ASKED, tool_choice="required", parallel_tool_calls=False, **asked
    )
    message: Any = first.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "21 degrees"}

    second = openai.chat.completions.create(messages=[*ASKED, message, result], **asked)

    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # all that was read and written, but for the last token, which is drawn and not computed
    known = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.prompt_tokens_details.cached_tokens is not None
    assert second.usage.prompt_tokens_details.cached_tokens >= known - 1
