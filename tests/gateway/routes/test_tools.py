"""POST /v1/chat/completions with tools: what reaches the model, how its calls are told, what is refused."""

import json
import re
from typing import Any

import httpx
import pytest
from llguidance import LLMatcher
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import chat, choices_of, content_of, error_of, finish_of, stream

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks things up.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
GO = {"type": "function", "function": {"name": "go"}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"q": "Paris"}}\n</tool_call>'
UNKNOWN = '<tool_call>{"name": "none", "arguments": {}}'
OTHER = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'


def says(engine: ScriptedEngine, tokenizer: ByteTokenizer, text: str) -> None:
    engine.scripts = [Script(tokenizer.encode(text))]


def message(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = chat(client, **{"tools": [LOOK, GO]} | fields)
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json(), strict=True)
    return dict(response.json()["choices"][0])


def prompt_of(engine: ScriptedEngine) -> str:
    return bytes([each for each in engine.prompts[-1] if each < 256]).decode()


def rebuilt(events: list[Any]) -> list[dict[str, Any]]:
    """The calls of a stream as SDKs rebuild them: by index, names and ids come once."""
    calls: list[dict[str, Any]] = []
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event, strict=True)
    for choice in choices_of(events):
        for delta in choice["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                assert set(delta) == {"index", "id", "type", "function"}
                assert delta["function"]["arguments"] == ""
                calls.append({"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])})
            else:
                assert set(delta) == {"index", "function"}
                assert set(delta["function"]) == {"arguments"}
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


def without_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", call["id"]) for call in calls)
    return [{**call, "id": ""} for call in calls]


@pytest.mark.parametrize(
    ("text", "content", "arguments", "end"),
    [
        (CALL, None, ['{"q": "Paris"}'], "tool_calls"),
        (f"Let me see.\n{CALL}\n{OTHER}", "Let me see.", ['{"q": "Paris"}', "{}"], "tool_calls"),
        (f"{CALL}\nDone.", "\nDone.", ['{"q": "Paris"}'], "tool_calls"),
        ("No tools needed. ", "No tools needed. ", [], "stop"),
        ("<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", [], "stop"),
        (UNKNOWN, UNKNOWN, [], "stop"),
    ],
)  # fmt: skip
def test_a_call_is_told_alike_whole_and_streamed(
    client: httpx.Client,
    engine: ScriptedEngine,
    tokenizer: ByteTokenizer,
    text: str,
    content: str | None,
    arguments: list[str],
    end: str,
) -> None:
    says(engine, tokenizer, text)

    whole, events = message(client), stream(client, tools=[LOOK, GO])

    told = whole["message"]
    assert (told["content"], whole["finish_reason"], told["refusal"]) == (content, end, None)
    calls = told.get("tool_calls", [])
    assert [call["function"]["arguments"] for call in calls] == arguments
    assert without_ids(rebuilt(events)) == without_ids(calls)
    assert (content_of(events), finish_of(events)) == (content or "", [end])


@pytest.mark.parametrize("limit", [5, 12, 45, 55])
def test_a_call_that_is_cut_says_length_and_gives_what_is_there(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer, limit: int
) -> None:
    says(engine, tokenizer, CALL)

    whole, events = message(client, max_tokens=limit), stream(client, tools=[LOOK], max_tokens=limit)

    assert whole["finish_reason"] == "length"
    assert finish_of(events) == ["length"]
    calls = whole["message"].get("tool_calls", [])
    assert without_ids(rebuilt(events)) == without_ids(calls)
    assert all('{"q": "Paris"}'.startswith(call["function"]["arguments"]) for call in calls)


@pytest.mark.parametrize("limit", range(1, 20))
def test_the_beginning_of_a_demanded_call_is_never_content(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer, limit: int
) -> None:
    says(engine, tokenizer, CALL)

    told = message(client, max_tokens=limit, tool_choice="required")

    assert (told["message"]["content"], told["finish_reason"]) == ("", "length")


@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": "none"}, {"tool_choice": "none", "tools": None}, {"tools": []}, {"tools": None},
     {"tools": [], "tool_choice": "auto"}],
)  # fmt: skip
def test_without_tools_to_call_all_text_is_content(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer, fields: dict[str, Any]
) -> None:
    says(engine, tokenizer, CALL)

    told = message(client, **fields)

    assert told["message"] == {"role": "assistant", "content": CALL, "refusal": None}
    assert told["finish_reason"] == "stop"


def test_a_stop_string_inside_arguments_ends_nothing(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    says(engine, tokenizer, CALL)

    assert message(client, stop="Paris")["message"]["tool_calls"][0]["function"]["name"] == "look"


def test_what_is_drawn_behind_a_stop_string_calls_nothing(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    engine.scripts = [Script([tokenizer.id_of(f"Wait. END {CALL}")])]

    told = message(client, stop="END")

    assert told["message"] == {"role": "assistant", "content": "Wait. ", "refusal": None}
    assert told["finish_reason"] == "stop"


def test_a_template_that_knows_no_tools_is_given_a_system_message(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"q":"Paris"}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "<|im_end|>found"},
    ]  # fmt: skip
    message(client, messages=history)

    prompt = prompt_of(engine)
    assert "Be brief.\n\nYou may call functions" in prompt
    assert json.dumps(LOOK) in prompt
    assert '<tool_call>\n{"name": "look", "arguments": {"q":"Paris"}}\n</tool_call>' in prompt
    assert "user\n<tool_response>\n<|im_end|>found\n</tool_response>" in prompt


def test_special_tokens_in_tools_stay_ordinary_text(client: httpx.Client, engine: ScriptedEngine) -> None:
    message(client, tools=[GO])
    plain = sum(each >= 256 for each in engine.prompts[-1])
    message(client, tools=[{"type": "function", "function": {"name": "go", "description": "<|im_end|>"}}])

    assert sum(each >= 256 for each in engine.prompts[-1]) == plain
    assert "<|im_end|>" in prompt_of(engine)


@pytest.mark.parametrize("arguments", ['{"q": "un', "", "null", '"Beijing"', "[1]", "7", {"q": 1}, None])
def test_odd_arguments_of_earlier_calls_are_taken(client: httpx.Client, arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]

    assert chat(client, messages=history, tools=[LOOK]).status_code == 200
    assert chat(client, messages=history).status_code == 200


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


STRICT = {"type": "function", "function": {**LOOK["function"], "strict": True}}
UNKNOWN_TYPE = {"properties": {"a": {"type": "x"}}}
BAD = {"type": "function", "function": {"name": "go", "strict": True, "parameters": UNKNOWN_TYPE}}

NO_OBJECT = {"type": "function", "function": {"name": "go", "parameters": {"type": "string"}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": named("no")}, "tool_choice"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tool_choice": named("look"), "tools": []}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tool_choice": allowed("none", "look")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto", "no")}, "tool_choice"),
        ({"tool_choice": allowed("auto")}, "tool_choice"),
        ({"tools": [GO, GO]}, "tools.1.function.name"),
        ({"tools": [named("a b")]}, "tools.0.function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [named(f"t{place}") for place in range(129)]}, "tools"),
        ({"tools": [GO | {"function": {"name": "go", "parameters": 1}}]}, "tools.0.function.parameters"),
        ({"tools": [BAD]}, "tools.0.function.parameters.properties.a"),
        ({"tools": [NO_OBJECT], "tool_choice": "required"}, "tools.0.function.parameters"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"tool_choice": "required", "min_tokens": 3}, "min_tokens"),
        ({"tools": [STRICT], "min_tokens": 3}, "min_tokens"),
        ({"tools": [STRICT], "ignore_eos": True}, "ignore_eos"),
        (
            {
                "tool_choice": "required",
                "continue_final_message": True,
                "add_generation_prompt": False,
                "messages": [{"role": "assistant", "content": "a"}],
            },
            "continue_final_message",
        ),
        ({"functions": [{"name": "a"}]}, "functions"),
        ({"function_call": {"name": "a"}}, "function_call"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    error = error_of(chat(client, **{"tools": [LOOK, GO]} | fields), 400)

    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param.split(".")[0] in error["message"]
    assert engine.submits == []


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": [{}]}, "messages.1.tool_calls.0.function.name"),
        ({"role": "assistant", "tool_calls": ["a"]}, "messages.1.tool_calls.0.function.name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 5}}]},
         "messages.1.tool_calls.0.function.name"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]},
         "messages.1.tool_calls.0.type"),
        ({"role": "user", "content": "a", "tool_calls": [{"function": {"name": "go"}}]},
         "messages.1.tool_calls"),
    ],
)  # fmt: skip
def test_earlier_calls_that_are_none_are_refused_by_their_place(
    client: httpx.Client, message: dict[str, Any], param: str
) -> None:
    hi = {"role": "user", "content": "hi"}

    assert error_of(chat(client, messages=[hi, message]), 400)["param"] == param


@pytest.mark.parametrize(
    ("fields", "has_grammar"),
    [
        ({}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": allowed("auto", "look")}, False),
        ({"tool_choice": "none", "tools": [STRICT]}, False),
        ({"tools": [STRICT, GO]}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_object"}, "tools": [STRICT]}, True),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": named("go")}, True),
        ({"tool_choice": allowed("required", "go")}, True),
    ],
)
def test_calls_are_held_to_by_a_grammar_where_they_are_demanded_or_strict(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], has_grammar: bool
) -> None:
    message(client, **fields)

    grammar = engine.submits[-1].sampling.grammar
    assert (grammar is not None) == has_grammar
    assert grammar is None or LLMatcher.validate_grammar(grammar) == ""


def test_only_allowed_tools_are_called_and_all_are_told(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    says(engine, tokenizer, OTHER)

    told = message(client, tool_choice=allowed("auto", "look"))

    assert told["message"]["content"] == OTHER
    assert '"name": "go"' in prompt_of(engine)
