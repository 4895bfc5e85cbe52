"""The real OpenAI SDK against a scripted engine: what the SDK parses is what was said."""

from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from engine.errors import EngineDied
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.settings import Settings
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.live import LiveServer, live_server, scripted_services

KEY = "0123456789abcdef"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture
def engine(tokenizer: ByteTokenizer) -> ScriptedEngine:
    pieces: list[str | bytes] = ["Hel", "lo ", b"\xf0\x9f", b"\x8d\x95", "!"]
    return ScriptedEngine([Script([tokenizer.id_of(piece) for piece in pieces])], num_cached_tokens=4)


@pytest.fixture
def server(engine: ScriptedEngine, tokenizer: ByteTokenizer) -> Iterator[LiveServer]:
    prompts = Prompts(TextModel(tokenizer, ChatTemplate(CHATML), (257,)), transcript_bytes=1 << 20)
    settings = Settings.model_validate({"keys": [{"key": KEY, "tenant": "a"}]})
    with live_server(scripted_services(engine, prompts), settings) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk


def test_a_whole_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=HELLO)

    assert answer.choices[0].message.content == "Hello 🍕!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_a_stream(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello 🍕!"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None


async def test_the_asynchronous_sdk_streams_three_choices(server: LiveServer) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        texts = {0: "", 1: "", 2: ""}
        async for chunk in await sdk.chat.completions.create(
            model="scripted", messages=HELLO, n=3, stream=True
        ):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""

    assert texts == dict.fromkeys(range(3), "Hello 🍕!")


def test_the_sdks_own_stream_helper_rebuilds_the_answer(client: OpenAI) -> None:
    with client.chat.completions.stream(model="scripted", messages=HELLO, logprobs=True) as events:
        answer = events.get_final_completion()

    assert answer.choices[0].message.content == "Hello 🍕!"
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or ()) == 5


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted", "gpt-4o"]
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"


def test_each_error_is_the_sdks_own_class(client: OpenAI, server: LiveServer, engine: ScriptedEngine) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model="scripted", messages=HELLO, temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")

    with pytest.raises(openai.NotFoundError) as missing:
        create(model="nobody", messages=HELLO)
    assert missing.value.code == "model_not_found"

    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0).models.list()

    engine.is_ready = False
    with pytest.raises(openai.InternalServerError) as unready:
        create(model="scripted", messages=HELLO)
    assert unready.value.code == "engine_unavailable"


def test_a_failure_in_the_middle_of_a_stream_is_raised(client: OpenAI, engine: ScriptedEngine) -> None:
    engine.scripts[0].fail_after = 2
    engine.failure = EngineDied("gone")

    with pytest.raises(openai.APIError, match="started"):
        list(client.chat.completions.create(model="scripted", messages=HELLO, stream=True))
