"""POST /v1/chat/completions of models that reason: what is told apart, and what templates are given."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.conversation.prompt import Prompts
from gateway.conversation.template import ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.reading import Readings
from gateway.settings import Settings
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.following import follows
from tests.gateway.talk import chat, choices_of, content_of, error_of, finish_of, stream
from tests.live import live_server, scripted_services

TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
)
PLAIN = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
OPENED = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
SWITCHED = OPENED.replace("<think>\n", "{% if enable_thinking is false %}<think></think>{% endif %}")
KEPT = PLAIN.replace("{{ message.content", "{{ message.reasoning_content }}{{ message.content")


GO = {"type": "function", "function": {"name": "go", "strict": True, "parameters": {"type": "object"}}}
LETTERS = ("<|im_start|>", "<|im_end|>")
TOKENS = (*LETTERS, "<think>", "</think>")


@contextmanager
def serving(
    engine: ScriptedEngine, template: str, special: tuple[str, ...] = LETTERS
) -> Iterator[httpx.Client]:
    tokenizer = ByteTokenizer(special)
    prompts = Prompts(TextModel(tokenizer, ChatTemplate(template), (257,)), transcript_bytes=1 << 20)
    with (
        live_server(scripted_services(engine, prompts), Settings()) as live,
        httpx.Client(base_url=live.url, timeout=10) as client,
    ):
        yield client


def says(engine: ScriptedEngine, text: str) -> None:
    engine.scripts = [Script(list(text.encode()))]


def ids_of(text: str, special: tuple[str, ...] = TOKENS) -> list[int]:
    """With the special words as tokens."""
    marks = {mark: 256 + place for place, mark in enumerate(special)}
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", text)
    return [each for piece in pieces for each in ([marks[piece]] if piece in marks else piece.encode())]


def reasoning_of(events: list[Any], name: str) -> str:
    return "".join(choice["delta"].get(name, "") for choice in choices_of(events))


@pytest.mark.parametrize(
    ("template", "text", "stop", "reasoning", "content", "num_reasoning"),
    [
        (PLAIN, "<think>two and four</think>answer four!", "four", "two and four", "answer ", 21),
        (PLAIN, "<think>\nhm\n</think>\n\nYes.", None, "hm", "Yes.", 13),
        (OPENED, "hm\n</think>\n\nYes.", None, "hm", "Yes.", 11),
        (OPENED, "hm, no end", None, "hm, no end", "", 10),
        (PLAIN, "Yes.", None, "", "Yes.", 0),
    ],
)
def test_reasoning_is_told_apart_counted_and_not_searched(
    engine: ScriptedEngine, template: str, text: str, stop: str | None, reasoning: str, content: str,
    num_reasoning: int,
) -> None:  # fmt: skip
    says(engine, text)

    with serving(engine, template) as client:
        whole, events = chat(client, stop=stop).json(), stream(client, stop=stop)

    ChatCompletion.model_validate(whole, strict=True)
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event, strict=True)
    told = whole["choices"][0]["message"]
    assert (told.get("reasoning_content", ""), told.get("reasoning", "")) == (reasoning, reasoning)
    assert (told["content"], whole["choices"][0]["finish_reason"]) == (content, "stop")
    assert content_of(events) == content
    assert finish_of(events) == ["stop"]
    assert reasoning_of(events, "reasoning") == reasoning_of(events, "reasoning_content") == reasoning
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == num_reasoning


def test_a_model_that_does_not_reason_has_its_marks_in_its_content(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    says(engine, "<think>a</think>b")

    assert chat(client).json()["choices"][0]["message"]["content"] == "<think>a</think>b"


def test_a_mark_that_is_a_token_is_spelled_where_it_is_content(engine: ScriptedEngine) -> None:
    engine.scripts = [Script(ids_of("a <think>b</think>"))]

    with serving(engine, PLAIN, TOKENS) as client:
        assert chat(client).json()["choices"][0]["message"]["content"] == "a <think>b</think>"
        assert content_of(stream(client)) == "a <think>b</think>"


def test_letters_of_a_mark_that_is_a_token_close_nothing(engine: ScriptedEngine) -> None:
    letters = list(b"hm</think>hm")
    engine.scripts = [Script([*ids_of("<think>"), *letters, *ids_of("</think>Yes.")])]

    with serving(engine, PLAIN, TOKENS) as client:
        told = chat(client).json()["choices"][0]["message"]

    assert (told["reasoning_content"], told["content"]) == ("hm</think>hm", "Yes.")


def test_earlier_reasoning_comes_back_where_the_template_asks_for_it(engine: ScriptedEngine) -> None:
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning": "BECAUSE"},
        {"role": "user", "content": "r"},
    ]
    with serving(engine, KEPT) as client:
        assert chat(client, messages=history).status_code == 200
    with serving(engine, PLAIN) as client:
        assert chat(client, messages=history).status_code == 200

    kept, dropped = [bytes([each for each in ids if each < 256]) for ids in engine.prompts]
    assert b"BECAUSE" in kept
    assert b"BECAUSE" not in dropped


@pytest.mark.parametrize(
    ("fields", "is_off"),
    [
        ({}, False),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "high"}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
def test_a_template_is_told_whether_to_reason(
    engine: ScriptedEngine, fields: dict[str, Any], is_off: bool
) -> None:
    with serving(engine, SWITCHED) as client:
        assert chat(client, **fields).status_code == 200

    prompt = bytes([each for each in engine.prompts[-1] if each < 256])
    assert prompt.endswith(b"<think></think>") == is_off


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"role": "x"}}, "chat_template_kwargs.role"),
        ({"chat_template_kwargs": {"message": "x"}}, "chat_template_kwargs.message"),
        ({"chat_template_kwargs": {"message": {}}}, "chat_template_kwargs.message"),
        ({"thinking_token_budget": 9}, "thinking_token_budget"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"thinking_token_budget": True}, "thinking_token_budget"),
    ],
)
def test_what_the_template_does_not_ask_for_is_refused_by_name(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    assert error_of(chat(client, **fields), 400)["param"] == param


def test_a_word_that_only_stands_in_a_template_s_text_is_not_asked_for(engine: ScriptedEngine) -> None:
    spoken = PLAIN + "{{ '</think> enable_thinking' }}"

    with serving(engine, spoken) as client:
        effort = error_of(chat(client, reasoning_effort="none"), 400)
        word = error_of(chat(client, chat_template_kwargs={"enable_thinking": False}), 400)

    assert (effort["param"], word["param"]) == ("reasoning_effort", "chat_template_kwargs.enable_thinking")


def test_effort_none_says_nothing_to_a_model_that_does_not_reason(client: httpx.Client) -> None:
    assert chat(client, reasoning_effort="none", chat_template_kwargs={}).status_code == 200


@pytest.mark.parametrize("is_control", [True, False])
@pytest.mark.parametrize("template", [OPENED, PLAIN])
@pytest.mark.parametrize(("fields", "thought", "content", "can_be"), [
    ({"thinking_token_budget": 5}, "5 of 5", "x", False),
    ({"thinking_token_budget": 6}, "6 of 6", "x", True),
    ({"thinking_token_budget": 0}, "", "x", True),
    ({"thinking_token_budget": 0}, "a", "x", False),
    ({"thinking_token_budget": 9, "choice": ["yes"]}, "hm", "yes", True),
    ({"thinking_token_budget": 9, "choice": ["yes"]}, "hm", "no", False),
    ({"choice": ["yes"]}, "as long as it likes", "yes", True),
])  # fmt: skip
def test_reasoning_is_held_to_its_budget(
    engine: ScriptedEngine,
    fields: dict[str, Any],
    thought: str,
    content: str,
    can_be: bool,
    template: str,
    is_control: bool,
) -> None:
    tokenizer = ByteTokenizer(TOKENS)
    if not is_control:
        tokenizer.control_ids = frozenset(tokenizer.special_tokens[mark] for mark in LETTERS)
    prompts = Prompts(TextModel(tokenizer, ChatTemplate(template), (257,)), transcript_bytes=1 << 20)
    with (
        live_server(scripted_services(engine, prompts), Settings()) as live,
        httpx.Client(base_url=live.url, timeout=10) as client,
    ):
        assert chat(client, **fields).status_code == 200

    grammar = engine.submits[-1].sampling.grammar
    assert grammar is not None
    text = f"{'' if template == OPENED else '<think>'}{thought}</think>{content}"
    assert follows(prompts.vocabulary(Readings(prompts).marks), grammar, ids_of(text)) == can_be


ON_CHANNELS = "{# <|channel|> #}" + TURNS + "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
CHANNELS = (*LETTERS, "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>")


@pytest.mark.parametrize(
    ("fields", "content", "other"),
    [({"choice": ["yes"]}, "yes", "no"), ({"tools": [GO]}, " and so on", "<|channel|>")],
)
def test_an_answer_on_channels_that_is_continued_goes_on_as_it_was(
    engine: ScriptedEngine, fields: dict[str, Any], content: str, other: str
) -> None:
    begun = {"role": "assistant", "content": "I say "}
    template = ChatTemplate(ON_CHANNELS)
    prompts = Prompts(TextModel(ByteTokenizer(CHANNELS), template, (257,)), transcript_bytes=1 << 20)
    says(engine, content)

    with serving(engine, ON_CHANNELS, CHANNELS) as client:
        asked = {"messages": [begun], "continue_final_message": True, "add_generation_prompt": False}
        told = chat(client, **asked, **fields).json()["choices"][0]["message"]

    grammar, vocabulary = engine.submits[-1].sampling.grammar, prompts.vocabulary(Readings(prompts).marks)
    assert told["content"] == content
    assert grammar is not None
    assert follows(vocabulary, grammar, ids_of(content, CHANNELS))
    assert not follows(vocabulary, grammar, ids_of(other, CHANNELS))


def test_what_is_said_on_the_way_to_a_demanded_call_is_told(engine: ScriptedEngine) -> None:
    before = "<|channel|>commentary<|message|>I go.<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.go <|constrain|>json<|message|>{}"
    engine.scripts = [Script(ids_of(before + call, CHANNELS))]

    with serving(engine, ON_CHANNELS, CHANNELS) as client:
        told = chat(client, tools=[GO], tool_choice="required").json()["choices"][0]["message"]

    assert told["content"] == "I go."
    assert told["tool_calls"][0]["function"] == {"name": "go", "arguments": "{}"}


def test_a_budget_is_refused_where_marks_are_letters(engine: ScriptedEngine) -> None:
    with serving(engine, PLAIN) as client:
        error = error_of(chat(client, thinking_token_budget=9), 400)

    assert error["param"] == "thinking_token_budget"
    assert "in letters" in error["message"]
