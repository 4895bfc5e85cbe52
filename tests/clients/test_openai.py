"""OpenAI's Python SDK, synchronous and asynchronous."""

import httpx2
import pytest
from openai import AsyncOpenAI, BadRequestError, DefaultHttpxClient, NotFoundError, OpenAI, RateLimitError
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.clients.occupied import occupied
from tests.clients.processes import Served

ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


class City(BaseModel):
    name: str = Field(max_length=20)
    population: int = Field(ge=1, le=99_999_999)


def test_an_answer(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(model="default", messages=ASKED, temperature=0, max_tokens=16)

    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_answer_says(sdk: OpenAI) -> None:
    whole = sdk.chat.completions.create(model="default", messages=ASKED, temperature=0, max_tokens=16)

    chunks = list(
        sdk.chat.completions.create(
            model="default",
            messages=ASKED,
            temperature=0,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_parse_gives_a_value_of_the_clients_type(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.parse(model="default", messages=ASKED, response_format=City, temperature=0)

    assert isinstance(answer.choices[0].message.parsed, City)


def test_the_stream_helper_parses_and_tells_of_each_part(sdk: OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="default", messages=ASKED, response_format=City, temperature=0
    ) as stream:
        types = [event.type for event in stream]
        answer = stream.get_final_completion()

    assert isinstance(answer.choices[0].message.parsed, City)
    assert {"chunk", "content.delta", "content.done"} <= set(types)


def test_the_raw_response_has_the_id_of_the_request(sdk: OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(
        model="default", messages=ASKED, max_tokens=1, extra_headers={"x-request-id": "mine-1"}
    )
    with sdk.chat.completions.with_streaming_response.create(
        model="default", messages=ASKED, max_tokens=1, stream=True
    ) as streamed:
        lines = [line for line in streamed.iter_lines() if line]

    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse()._request_id == "mine-1"
    assert streamed.headers["x-request-id"]
    assert lines[-1] == "data: [DONE]"


def test_models_and_completions(sdk: OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["default"]
    assert sdk.models.retrieve("default").object == "model"

    answer = sdk.completions.create(model="default", prompt="One, two, three,", temperature=0, max_tokens=4)

    assert "four" in answer.choices[0].text


def test_errors_are_the_sdks_own(sdk: OpenAI) -> None:
    with pytest.raises(NotFoundError) as unknown:
        sdk.chat.completions.create(model="unknown", messages=ASKED)
    with pytest.raises(BadRequestError) as wrong:
        sdk.chat.completions.create(model="default", messages=ASKED, temperature=3)

    assert unknown.value.code == "model_not_found"
    assert wrong.value.param == "temperature"
    assert wrong.value.request_id


def test_a_full_server_is_asked_again_until_it_has_room(narrow: Served) -> None:
    statuses: list[int] = []
    with occupied(narrow) as held:

        def remember(response: httpx2.Response) -> None:
            statuses.append(response.status_code)
            held.let_go()

        http = DefaultHttpxClient(event_hooks={"response": [remember]}, timeout=60)
        with OpenAI(base_url=narrow.base_url, api_key="unused", max_retries=8, http_client=http) as client:
            answer = client.chat.completions.create(model="default", messages=ASKED, max_tokens=2)

    assert statuses[0] == 429
    assert statuses[-1] == 200
    assert answer.choices[0].finish_reason == "length"


def test_a_client_without_retries_is_told_when_to_come_back(narrow: Served) -> None:
    with (
        OpenAI(base_url=narrow.base_url, api_key="unused", max_retries=0) as client,
        occupied(narrow),
        pytest.raises(RateLimitError) as full,
    ):
        client.chat.completions.create(model="default", messages=ASKED, max_tokens=2)

    assert full.value.code == "rate_limit_exceeded"
    assert int(full.value.response.headers["retry-after"]) >= 1


async def test_the_asynchronous_sdk(served: Served) -> None:
    async with AsyncOpenAI(base_url=served.base_url, api_key="unused") as client:
        answer = await client.chat.completions.create(
            model="default", messages=ASKED, temperature=0, max_tokens=16
        )
        stream = await client.chat.completions.create(
            model="default", messages=ASKED, temperature=0, max_tokens=16, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        parsed = await client.chat.completions.parse(
            model="default", messages=ASKED, response_format=City, temperature=0
        )
        async with client.chat.completions.stream(
            model="default", messages=ASKED, temperature=0, max_tokens=16
        ) as helper:
            final = await helper.get_final_completion()

    assert text == answer.choices[0].message.content == final.choices[0].message.content
    assert isinstance(parsed.choices[0].message.parsed, City)


async def test_a_client_that_leaves_a_stream_makes_room(narrow: Served) -> None:
    async with AsyncOpenAI(base_url=narrow.base_url, api_key="unused") as client:
        stream = await client.chat.completions.create(
            model="default", messages=ASKED, stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
        answer = await client.chat.completions.create(
            model="default", messages=ASKED, max_tokens=1, timeout=30
        )

    assert answer.choices[0].finish_reason == "length"
