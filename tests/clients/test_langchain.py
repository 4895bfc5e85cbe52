"""LangChain's ChatOpenAI."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.clients.processes import Served

ASKED = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    population: int = Field(ge=1, le=99_999_999)


@pytest.fixture
def chat(served: Served) -> ChatOpenAI:
    return ChatOpenAI(
        model="default",
        base_url=served.base_url,
        api_key=SecretStr("unused"),
        temperature=0,
        max_completion_tokens=64,
        stream_usage=True,
    )


def test_invoke(chat: ChatOpenAI) -> None:
    answer = chat.invoke([SystemMessage("You are a helpful assistant."), HumanMessage(ASKED)])

    assert isinstance(answer, AIMessage)
    assert "Paris" in answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def test_a_stream_adds_up_to_the_answer(chat: ChatOpenAI) -> None:
    whole = chat.invoke(ASKED)

    first, *rest = chat.stream(ASKED)
    for chunk in rest:
        first = first + chunk

    assert first.text == whole.text
    assert first.usage_metadata is not None
    assert whole.usage_metadata is not None
    assert first.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


async def test_asked_in_a_batch(chat: ChatOpenAI) -> None:
    answers = await chat.abatch([ASKED, "Who are you?"])

    assert ["Paris" in answer.text for answer in answers] == [True, False]


@pytest.mark.parametrize("strict", [None, True])
def test_structured_output_by_schema(chat: ChatOpenAI, strict: bool | None) -> None:
    city = chat.with_structured_output(City, method="json_schema", strict=strict).invoke(ASKED)

    assert isinstance(city, City)


def test_structured_output_in_json_mode(chat: ChatOpenAI) -> None:
    answer = chat.with_structured_output(method="json_mode").invoke(f"{ASKED} Answer in JSON.")

    assert isinstance(answer, dict)
