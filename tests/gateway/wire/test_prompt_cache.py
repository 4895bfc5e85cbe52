"""The prompt cache's fields: what is taken, and what is refused by name."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.parse import parse_chat_request
from gateway.wire.prompt_cache import Breakpoint
from tests.gateway.talk import body


def parsed(**fields: Any) -> Any:
    return parse_chat_request(json.dumps(body(**fields)).encode()).chat


OPTIONS = "prompt_cache_options"
PLACE = "messages.0.content.1.prompt_cache_breakpoint"


def marked(mark: object) -> list[dict[str, object]]:
    part = {"type": "text", "text": "hi", "prompt_cache_breakpoint": mark}
    return [{"role": "user", "content": [{"type": "text", "text": "é!"}, part]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_key": 5}, "prompt_cache_key"),
        ({"prompt_cache_key": "k" * 1025}, "prompt_cache_key"),
        ({OPTIONS: []}, OPTIONS),
        ({OPTIONS: {"mode": "both"}}, f"{OPTIONS}.mode"),
        ({OPTIONS: {"ttl": "1h"}}, f"{OPTIONS}.ttl"),
        ({OPTIONS: {"prewarm": 1}}, f"{OPTIONS}.prewarm"),
        ({OPTIONS: {"prewarn": True}}, f"{OPTIONS}.prewarn"),
        ({OPTIONS: {"comparison_response_id": 1}}, f"{OPTIONS}.comparison_response_id"),
        ({OPTIONS: {"prewarm": True}, "n": 2}, "n"),
        ({OPTIONS: {"prewarm": True}, "cache": "read-only"}, "cache"),
        ({OPTIONS: {"prewarm": True}, "use_beam_search": True}, "use_beam_search"),
        ({OPTIONS: {"prewarm": True}, "session_id": "s"}, f"{OPTIONS}.prewarm"),
        ({OPTIONS: {"mode": "explicit"}, "session_id": "s"}, f"{OPTIONS}.mode"),
        ({"prompt_cache_retention": "48h"}, "prompt_cache_retention"),
        ({"messages": marked("explicit")}, PLACE),
        ({"messages": marked({})}, f"{PLACE}.mode"),
        ({"messages": marked({"mode": "implicit"})}, f"{PLACE}.mode"),
        ({"messages": marked({"mode": "explicit", "ttl": []})}, f"{PLACE}.ttl"),
        ({"messages": marked({"mode": "explicit", "x": 1})}, f"{PLACE}.x"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(**fields)

    assert refused.value.param == param


@pytest.mark.parametrize("ttl", [None, "30m", "12h"])
def test_a_breakpoint_is_at_the_end_of_its_part(ttl: str | None) -> None:
    mark = {"mode": "explicit"} | ({} if ttl is None else {"ttl": ttl})

    (message,) = parsed(messages=marked(mark)).messages

    assert message.content == "é!hi"
    assert message.breakpoints == (Breakpoint(4, ttl),)
    assert "breakpoints" not in message.for_template()


def test_what_says_nothing_is_taken() -> None:
    chat = parsed(prompt_cache_key=None, prompt_cache_options={"mode": None}, prompt_cache_retention=None)

    assert not chat.prewarms
    assert chat.cache_options.mode is None
    assert parsed(messages=marked(None)).messages[0].breakpoints == ()
