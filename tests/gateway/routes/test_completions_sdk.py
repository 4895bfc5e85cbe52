"""The OpenAI SDK's own completions against a scripted engine: what it parses is what was said."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from engine.errors import QueueFull
from tests.fakes import ScriptedEngine
from tests.live import LiveServer


@pytest.fixture
def sdk(server: LiveServer, engine: ScriptedEngine) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_whole_completion_with_all_that_it_may_have(sdk: OpenAI) -> None:
    told = sdk.completions.create(
        model="scripted", prompt=["ab", "c"], n=2, best_of=2, echo=True, logprobs=2, max_tokens=8, suffix=""
    )

    assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in told.choices] == ["abHello, world"] * 2 + ["cHello, world"] * 2
    logprobs = told.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "Hello", ", ", "world"]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert logprobs.text_offset == [0, 1, 2, 7, 9]
    assert told.usage is not None
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (3, 12)


def test_a_streamed_completion(sdk: OpenAI) -> None:
    chunks = list(
        sdk.completions.create(
            model="scripted", prompt=[97, 98], stream=True, stream_options={"include_usage": True}
        )
    )

    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "Hello, world"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 5


def test_a_full_queue_is_the_sdks_rate_limit_error(sdk: OpenAI, engine: ScriptedEngine) -> None:
    engine.refusal = QueueFull("full", 1.0)

    with pytest.raises(openai.RateLimitError) as full:
        sdk.completions.create(model="scripted", prompt="a")
    assert full.value.code == "rate_limit_exceeded"

    with pytest.raises(openai.RateLimitError):
        sdk.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "a"}], stream=True
        )


def test_the_sdk_asks_again_when_it_was_told_to(server: LiveServer, engine: ScriptedEngine) -> None:
    engine.refusal = QueueFull("full", 0.1)

    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=1) as patient,
        pytest.raises(openai.RateLimitError),
    ):
        patient.completions.create(model="scripted", prompt="a")

    assert len(engine.submits) == 2
