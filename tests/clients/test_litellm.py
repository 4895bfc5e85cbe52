"""LiteLLM's proxy between OpenAI's SDK and the gateway."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.clients.processes import Served, free_port, running

ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
CONFIG = """
model_list:
  - model_name: through-proxy
    litellm_params:
      model: openai/default
      api_base: {base_url}
      api_key: unused
litellm_settings:
  telemetry: false
  num_retries: 0
"""
AT_HOME = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": "sk-proxy", "NO_PROXY": "127.0.0.1"}


@pytest.fixture(scope="module")
def proxy(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(base_url=served.base_url))
    program = Path(sys.executable).with_name("litellm")
    command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with (
        running(command, AT_HOME, port, "/health/liveliness", folder / "litellm.log") as proxied,
        OpenAI(base_url=proxied.base_url, api_key="sk-proxy", max_retries=0) as client,
    ):
        yield client


def test_an_answer(proxy: OpenAI) -> None:
    answer = proxy.chat.completions.create(
        model="through-proxy", messages=ASKED, temperature=0, max_tokens=16
    )

    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_stream_with_usage(proxy: OpenAI) -> None:
    chunks = list(
        proxy.chat.completions.create(
            model="through-proxy",
            messages=ASKED,
            temperature=0,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    usage = chunks[-1].usage
    assert usage is not None
    assert 0 < usage.completion_tokens <= 16


def test_cached_tokens_reach_the_client(proxy: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Count with me: " + "one two " * 40}
    ]
    proxy.chat.completions.create(model="through-proxy", messages=messages, max_tokens=1)

    usage = proxy.chat.completions.create(model="through-proxy", messages=messages, max_tokens=1).usage

    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 64


def test_a_refusal_stays_a_refusal(proxy: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="temperature"):
        proxy.chat.completions.create(model="through-proxy", messages=ASKED, temperature=3)
