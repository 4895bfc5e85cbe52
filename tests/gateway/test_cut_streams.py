"""Streams with reasoning and calls that end at any byte: by a limit, with the engine, or as a client leaves.

However they end, they are whole events of the protocol's, and what they say is what a whole answer says.
"""

import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from openai._streaming import SSEDecoder
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.conversation.prompt import Prompts
from gateway.conversation.template import ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.settings import Settings
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import CHAT, body, chat, choices_of, content_of, finish_of, stream
from tests.gateway.test_streaming import wait_until_idle
from tests.live import live_server, scripted_services

TURNS = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
LOOK = {"type": "function", "function": {"name": "look"}}


class Form(NamedTuple):
    """A model's way to think, speak and call; a template that speaks of it; marks that are tokens."""

    template: str
    marks: tuple[str, ...]
    text: str
    content: str  # with all that stands behind it


CALL = '<tool_call>\n{"name": "look", "arguments": {"q": "né"}}\n</tool_call>'
HEADER = "commentary to=functions.look "
FORMS = {
    "letters": Form(
        "{# </think><tool_call> #}" + TURNS, (), f"<think>é ü</think>\n\nOù? {CALL}", f"Où? {CALL}"
    ),
    "tokens": Form(
        "{# </think><tool_call> #}" + TURNS,
        ("<think>", "</think>", "<tool_call>", "</tool_call>"),
        f"<think>é ü</think>\n\nOù? {CALL}",
        f"Où? {CALL}",
    ),
    "channels": Form(
        "{# <|channel|> #}" + TURNS,
        ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|call|>"),
        "<|channel|>analysis<|message|>é ü<|end|><|start|>assistant<|channel|>commentary<|message|>Où?<|end|>"
        f'<|start|>assistant<|channel|>{HEADER}<|constrain|>json<|message|>{{"q": "né"}}',
        "Où?",
    ),
}


class Speaking(NamedTuple):
    """A server whose model speaks in a form."""

    form: Form
    ids: list[int]
    engine: ScriptedEngine
    client: httpx.Client


@pytest.fixture(params=list(FORMS))
def speaking(request: pytest.FixtureRequest, engine: ScriptedEngine) -> Iterator[Speaking]:
    form = FORMS[request.param]
    tokenizer = ByteTokenizer(("<|im_start|>", "<|im_end|>", *form.marks))
    prompts = Prompts(TextModel(tokenizer, ChatTemplate(form.template), (257,)), transcript_bytes=1 << 20)
    pieces = re.split(f"({'|'.join(map(re.escape, form.marks))})", form.text) if form.marks else [form.text]
    ids = [
        token_id
        for piece in pieces
        for token_id in (
            [tokenizer.special_tokens[piece]] if piece in form.marks else tokenizer.encode(piece)
        )
    ]
    with (
        live_server(scripted_services(engine, prompts), Settings()) as live,
        httpx.Client(base_url=live.url, timeout=10) as client,
    ):
        yield Speaking(form, ids, engine, client)


def told(events: list[Any]) -> tuple[str, str, str]:
    """Content, reasoning and arguments of a stream."""
    deltas = [choice["delta"] for choice in choices_of(events)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert sum("id" in call for call in calls) <= 1
    return (
        content_of(events),
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        "".join(call["function"]["arguments"] for call in calls),
    )


def check_beginning(form: Form, parts: tuple[str, str, str]) -> None:
    """What was told is a beginning of what is told of the whole; half a mark in letters is content."""
    content, reasoning, arguments = parts
    assert form.content.startswith(content) or form.text.startswith(content)
    assert "é ü</think>".startswith(reasoning)
    assert '{"q": "né"}'.startswith(arguments)


def test_cut_by_a_limit_at_every_token_a_stream_says_what_a_whole_answer_says(speaking: Speaking) -> None:
    form, ids, engine, client = speaking
    engine.scripts = [Script(ids)]
    for limit in range(1, len(ids) + 2):
        whole = chat(client, tools=[LOOK], max_tokens=limit).json()
        events = stream(client, tools=[LOOK], max_tokens=limit)

        ChatCompletion.model_validate(whole, strict=True)
        for event in events[:-1]:
            ChatCompletionChunk.model_validate(event, strict=True)
        (choice,) = whole["choices"]
        message = choice["message"]
        calls = message.get("tool_calls", [{"function": {"arguments": ""}}])
        parts = told(events)
        assert parts == (
            message["content"] or "",
            message.get("reasoning_content", ""),
            calls[0]["function"]["arguments"],
        )
        check_beginning(form, parts)
        assert finish_of(events) == [choice["finish_reason"]]
        assert choice["finish_reason"] == ("length" if limit <= len(ids) else "tool_calls")


def test_when_the_engine_ends_at_any_token_the_stream_says_so(speaking: Speaking) -> None:
    form, ids, engine, client = speaking
    for length in range(1, len(ids)):
        engine.scripts = [Script(ids, fail_after=length)]

        *events, last = stream(client, tools=[LOOK])

        assert last["error"]["code"] == "engine_unavailable"
        assert finish_of(events) == []
        check_beginning(form, told(events))
    wait_until_idle(engine)


def test_events_are_the_same_in_whatever_bytes_they_arrive(speaking: Speaking) -> None:
    _, ids, engine, client = speaking
    engine.scripts = [Script(ids)]
    data = client.post(CHAT, json=body(stream=True, tools=[LOOK])).content

    at_once = [event.data for event in SSEDecoder().iter_bytes(iter([data]))]
    singly = [event.data for event in SSEDecoder().iter_bytes(iter([bytes([each]) for each in data]))]

    assert singly == at_once
    assert at_once[-1] == "[DONE]"


def test_a_client_may_leave_at_any_byte(speaking: Speaking) -> None:
    _, ids, engine, client = speaking
    engine.scripts = [Script(ids[:4])]
    request = client.build_request("POST", CHAT, json=body(stream=True, tools=[LOOK]))
    head = f"POST {CHAT} HTTP/1.1\r\n" + "".join([f"{k}: {v}\r\n" for k, v in request.headers.items()])
    sent = head.encode() + b"\r\n" + request.content
    url = urlsplit(str(client.base_url))
    assert url.hostname is not None
    assert url.port is not None

    num_bytes = 0
    while _leave_after(num_bytes, sent, url.hostname, url.port):
        num_bytes += 1

    assert num_bytes > 800
    wait_until_idle(engine)
    assert stream(client, tools=[LOOK])[-1] == "[DONE]"


def _leave_after(num_bytes: int, sent: bytes, host: str, port: int) -> bool:
    """Whether there was more than so many bytes to read."""
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(sent)
        received = b""
        while len(received) < num_bytes:
            received += connection.recv(num_bytes - len(received))
            if received.endswith(b"\r\n0\r\n\r\n"):
                return False
    return True
