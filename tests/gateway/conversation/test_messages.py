"""Every form of a message becomes the one that templates read."""

from typing import Any

import pytest

from gateway.conversation.messages import normalize, strings_of
from gateway.conversation.tool_prompt import call_text

CALL = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": '{"a": 1}'}}


def normal(message: dict[str, Any], *, developer: bool = False, tools: bool = False) -> dict[str, Any]:
    return normalize([message], names_developer=developer, write_call=None if tools else call_text)[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("hi", "hi"),
        ([], ""),
        ([{"type": "text", "text": "hi"}], "hi"),
        ([{"type": "text", "text": t} for t in ("a", "", "b")], "ab"),
    ],
)
def test_content_becomes_a_string(content: Any, text: str) -> None:
    assert normal({"role": "user", "content": content})["content"] == text


def test_content_left_out_is_empty() -> None:
    assert normal({"role": "assistant", "tool_calls": None}) == {"role": "assistant", "content": ""}


def test_developer_is_system_where_the_template_knows_no_developer() -> None:
    assert normal({"role": "developer", "content": ""})["role"] == "system"
    assert normal({"role": "developer", "content": ""}, developer=True)["role"] == "developer"


def test_a_role_that_is_none_of_the_protocol_s_is_refused() -> None:
    with pytest.raises(ValueError, match="role is one of"):
        normal({"role": "<|im_start|>", "content": "x"})


def test_tool_calls_reach_a_template_that_knows_them_as_data() -> None:
    message = normal({"role": "assistant", "content": "ok", "tool_calls": [CALL]}, tools=True)

    assert message["content"] == "ok"
    assert message["tool_calls"][0]["function"] == {"name": "sum", "arguments": {"a": 1}}


def test_tool_calls_become_text_for_a_template_that_does_not() -> None:
    message = normal({"role": "assistant", "content": "ok", "tool_calls": [CALL]})

    text = '<tool_call>\n{"name": "sum", "arguments": {"a": 1}}\n</tool_call>'
    assert message == {"role": "assistant", "content": f"ok\n{text}"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a":  1}', '{"a":  1}'), ({"a": "é"}, '{"a": "é"}'), (None, "null"), ("no json", "no json")],
)
def test_tool_calls_reach_a_template_that_writes_text_as_text(arguments: object, text: str) -> None:
    call = {"id": None, "function": {"name": "f", "arguments": arguments}}
    (message,) = normalize(
        [{"role": "assistant", "tool_calls": [call]}],
        names_developer=False,
        write_call=None,
        arguments="text",
    )

    assert message["tool_calls"] == [{"function": {"name": "f", "arguments": text}}]


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        ('{"a":  1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}),
        ('{"q": "un', {"arguments": '{"q": "un'}), ("[1]", {"arguments": "[1]"}), (7, {"arguments": 7}),
    ],
)  # fmt: skip
def test_tool_calls_reach_a_template_that_takes_data_only_as_data(arguments: object, data: object) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (message,) = normalize(
        [{"role": "assistant", "tool_calls": [call]}],
        names_developer=False,
        write_call=None,
        arguments="data",
    )

    assert message["tool_calls"] == [{"function": {"name": "f", "arguments": data}}]


@pytest.mark.parametrize("arguments", ["not json", "[1]", "[" * 100_000])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}

    message = normal({"role": "assistant", "tool_calls": [call]}, tools=True)

    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_strings_are_found_at_any_depth() -> None:
    assert strings_of([{"a": ["b", {"c": 1}]}, None, ("d",)]) == ["a", "b", "c", "d"]
