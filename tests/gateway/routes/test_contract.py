"""Every parameter of the protocol, as the SDK lists them: served with an effect that is shown, or refused.

A parameter that a new SDK brings fails here until somebody decides.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from engine.sequence import SamplingParams
from tests.fakes import ScriptedEngine
from tests.gateway.talk import chat, complete, error_of, stream, stream_completion

Effect = Callable[[SamplingParams], bool]
SCHEMA = {"name": "x", "schema": {"type": "object"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

# What the engine is asked for when the field says so. Those of which the effect lies elsewhere are below.
DRAWN: dict[str, tuple[Any, Effect]] = {
    "frequency_penalty": (0.5, lambda asked: asked.frequency_penalty == 0.5),
    "logit_bias": ({"5": 7}, lambda asked: asked.logit_bias == {5: 7}),
    "max_tokens": (7, lambda asked: asked.max_tokens == 7),
    "presence_penalty": (0.5, lambda asked: asked.presence_penalty == 0.5),
    "seed": (42, lambda asked: asked.seed == 42),
    "temperature": (0.25, lambda asked: asked.temperature == 0.25),
    "top_p": (0.5, lambda asked: asked.top_p == 0.5),
}
CHAT_DRAWN: dict[str, tuple[Any, Effect]] = {
    "logprobs": (True, lambda asked: asked.logprobs == 0),
    "max_completion_tokens": (7, lambda asked: asked.max_tokens == 7),
    "response_format": (
        {"type": "json_schema", "json_schema": SCHEMA},
        lambda asked: asked.grammar is not None,
    ),
}
COMPLETION_DRAWN: dict[str, tuple[Any, Effect]] = {"logprobs": (3, lambda asked: asked.logprobs == 3)}
# Shown by tests of their own, which are named here.
ELSEWHERE = {
    "messages": "test_chat_prompts.py",
    "model": "test_models.py",
    "prompt": "test_completions.py",
    "n": "test_chat.py",
    "best_of": "test_completions.py",
    "echo": "test_completion_echo.py",
    "stop": "test_chat.py",
    "stream": "test_chat.py",
    "top_logprobs": "test_chat.py",
    "tools": "test_tools.py",
    "tool_choice": "test_tools.py",
    "parallel_tool_calls": "test_tools.py",
    "reasoning_effort": "test_reasoning.py",
    "prompt_cache_key": "../../integration/test_prompt_cache.py",
    "prompt_cache_options": "../../integration/test_prompt_cache.py",
}
REFUSED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "look"},
    "functions": [{"name": "look"}],
    "modalities": ["audio"],
    "moderation": {"model": "omni"},
    "prediction": {"type": "content", "content": "x"},
    "service_tier": "flex",
    "store": True,
    "suffix": "x",
    "verbosity": "high",
    "web_search_options": {},
}
OWN = {"stream_options", "prompt_cache_retention"}
SAYS_NOTHING: dict[str, Any] = {"metadata": {"a": "b"}, "safety_identifier": "x", "user": "x"}


def names_in(params: Any) -> set[str]:
    return set(params.CompletionCreateParamsStreaming.__required_keys__) | set(
        params.CompletionCreateParamsStreaming.__optional_keys__
    )


def test_every_parameter_of_chat_is_known_here() -> None:
    known = {*DRAWN, *CHAT_DRAWN, *ELSEWHERE, *REFUSED, *SAYS_NOTHING, *OWN}

    assert names_in(chat_create_params) - known == set()


def test_every_parameter_of_completions_is_known_here() -> None:
    known = {*DRAWN, *COMPLETION_DRAWN, *ELSEWHERE, *REFUSED, *SAYS_NOTHING, *OWN}

    assert names_in(completion_create_params) - known == set()


@pytest.mark.parametrize("name", sorted(DRAWN | CHAT_DRAWN))
def test_a_parameter_of_chat_is_served(client: httpx.Client, engine: ScriptedEngine, name: str) -> None:
    value, has_effect = (DRAWN | CHAT_DRAWN)[name]

    assert chat(client).status_code == 200
    assert chat(client, **{name: value}).status_code == 200
    stream(client, **{name: value})

    without, *with_it = (submit.sampling for submit in engine.submits)
    assert not has_effect(without)
    assert all(has_effect(asked) for asked in with_it)


@pytest.mark.parametrize("name", sorted(DRAWN | COMPLETION_DRAWN))
def test_a_parameter_of_completions_is_served(
    client: httpx.Client, engine: ScriptedEngine, name: str
) -> None:
    value, has_effect = (DRAWN | COMPLETION_DRAWN)[name]

    assert complete(client).status_code == 200
    assert complete(client, **{name: value}).status_code == 200

    without, with_it = (submit.sampling for submit in engine.submits)
    assert not has_effect(without)
    assert has_effect(with_it)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_served_is_refused_by_name(
    client: httpx.Client, engine: ScriptedEngine, name: str
) -> None:
    ask = chat if name in names_in(chat_create_params) else complete

    error = error_of(ask(client, **{name: REFUSED[name]}), 400)

    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert engine.submits == []


@pytest.mark.parametrize("name", sorted(SAYS_NOTHING))
def test_what_a_client_says_of_itself_changes_nothing(
    client: httpx.Client, engine: ScriptedEngine, name: str
) -> None:
    chat(client, seed=1)
    assert chat(client, seed=1, **{name: SAYS_NOTHING[name]}).status_code == 200

    first, second = engine.submits
    assert (first.prompt, first.sampling) == (second.prompt, second.sampling)


@pytest.mark.parametrize("ask", [stream, stream_completion])
def test_a_stream_carries_usage_when_that_is_asked_for(client: httpx.Client, ask: Any) -> None:
    assert all("usage" not in event for event in ask(client)[:-1])

    *chunks, last, done = ask(client, stream_options={"include_usage": True, "include_obfuscation": False})

    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], done) == ([], "[DONE]")
    assert last["usage"]["completion_tokens"] > 0


def test_what_is_kept_for_a_day_may_go_to_the_disk(client: httpx.Client, engine: ScriptedEngine) -> None:
    for retention in (None, "in_memory", "24h"):
        assert chat(client, prompt_cache_retention=retention).status_code == 200

    assert [submit.persists for submit in engine.submits] == [False, False, True]


@pytest.mark.parametrize("file", sorted(set(ELSEWHERE.values())))
def test_what_is_shown_elsewhere_is_shown_there(file: str) -> None:
    shown = (Path(__file__).parent / file).read_text()

    assert [name for name, place in ELSEWHERE.items() if place == file and name not in shown] == []
