"""Messages: the forms of content, and what a template is given."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.messages import Message
from gateway.wire.parse import parse_chat_request


def parse(*messages: Any) -> list[Message]:
    body = {"model": "m", "messages": messages}
    return parse_chat_request(json.dumps(body).encode())[0].messages


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_parts_say_what_their_concatenation_says() -> None:
    parts, joined = parse(
        {"role": "user", "content": [text("alpha "), text("beta "), text("gamma")]},
        {"role": "user", "content": "alpha beta gamma"},
    )

    assert parts == joined


def test_an_empty_array_is_the_empty_string_and_null_stays_null() -> None:
    empty, null, absent = parse(
        {"role": "user", "content": []}, {"role": "assistant", "content": None}, {"role": "assistant"}
    )

    assert empty.content == ""
    assert null.for_template() == absent.for_template() == {"role": "assistant", "content": None}


def test_a_template_gets_what_it_may_print_and_no_more() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"q": "un'}}
    (message,) = parse({"role": "assistant", "content": None, "tool_calls": [call], "audio": None, "zzz": 1})

    assert message.for_template() == {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "messages.0.content"),
        ({"role": "user", "content": ["a"]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages.0.content.0.type"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages.0.content.0.text"),
        ({"role": "robot", "content": "a"}, "messages.0.role"),
        ({"content": "a"}, "messages.0.role"),
        ({"role": "user", "content": "a", "name": 5}, "messages.0.name"),
        ("hi", "messages.0"),
        (None, "messages.0"),
    ],
)
def test_a_bad_message_is_pointed_at(message: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(message)

    assert caught.value.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video"])
def test_a_part_that_cannot_be_read_is_named(kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"content.1.type is '{kind}'"):
        parse({"role": "user", "content": [text("a"), {"type": kind}]})
