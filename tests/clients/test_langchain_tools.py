"""Tools through LangChain's ChatOpenAI."""

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.clients.processes import Served

ASKED = HumanMessage("What is the weather in Paris?")


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}, 21 degrees."


class Weather(BaseModel):
    """The weather in a city."""

    city: str = Field(max_length=20)


@pytest.fixture
def chat(served: Served) -> ChatOpenAI:
    return ChatOpenAI(
        model="default",
        base_url=served.base_url,
        api_key=SecretStr("unused"),
        temperature=0,
        max_completion_tokens=256,
    )


def test_a_bound_tool_is_called_and_its_result_answered(chat: ChatOpenAI) -> None:
    asking = chat.bind_tools([get_weather], tool_choice="required", strict=True, parallel_tool_calls=False)
    asked = asking.invoke([ASKED])
    result = get_weather.invoke(asked.tool_calls[0])

    answer = chat.bind_tools([get_weather], tool_choice="none").invoke([ASKED, asked, result])

    assert isinstance(result, ToolMessage)
    assert asked.tool_calls[0]["name"] == "get_weather"
    assert answer.text
    assert not answer.tool_calls


def test_a_streamed_call_adds_up(chat: ChatOpenAI) -> None:
    asking = chat.bind_tools([get_weather], tool_choice="required", strict=True, parallel_tool_calls=False)

    first, *rest = asking.stream([ASKED])
    for chunk in rest:
        first = first + chunk

    (call,) = first.tool_calls
    assert call["name"] == "get_weather"
    assert set(call["args"]) == {"city"}


def test_structured_output_by_a_function(chat: ChatOpenAI) -> None:
    answer = chat.with_structured_output(Weather, method="function_calling", strict=True).invoke([ASKED])

    assert isinstance(answer, Weather)
