"""Whole streams, byte for byte, as they were recorded: how they are put together may change, they may not.

`recorded_streams.txt` has them one after the other, under their names; ids and times are replaced. What a
client is told is a matter of the protocol, so a recording changes only together with the page on the API.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.cache_messages import CacheReport
from engine.errors import EngineDied
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import CHAT, COMPLETIONS, body

RECORDED = Path(__file__).parent / "recorded_streams.txt"
USAGE = {"stream_options": {"include_usage": True}}
EXPLAINED = {"cache": {"explain": True}}
REQUESTS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "two choices": {"n": 2},
    "usage": USAGE,
    "two choices and usage": {"n": 2, **USAGE},
    "logprobs": {"logprobs": True, "top_logprobs": 1},
    "logprobs, two choices and usage": {"logprobs": True, "n": 2, **USAGE},
    "stop string": {"stop": ["wor"]},
    "stop string that is kept": {"stop": ["r", "ld"], "include_stop_str_in_output": True},
    "stop string that never comes": {"stop": ["worldly"], "logprobs": True},
    "length": {"max_tokens": 4},
    "one token": {"max_tokens": 1, **USAGE},
    "explained": EXPLAINED,
    "explained and usage": {**EXPLAINED, **USAGE},
    "completion": {"prompt": "abc"},
    "completion with an echo": {"prompt": "abc", "echo": True, **USAGE},
    "completion with an echo and logprobs": {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 3},
    "completion, two prompts, two choices": {"prompt": ["abc", "de"], "n": 2, "max_tokens": 3, **USAGE},
    "failure": {},
    "failure of one of two": {"n": 2, **USAGE},
    "completion that fails": {"prompt": "abc"},
    "nothing": {},
}
PIECES = (
    "Hello",
    ", ",
    "wor",
    'ld "\\\n\t\x07',
    b"\xf0\x9f",
    b"\x8d\x95",
    "",
    "é\u2028</s>",
    b"\xff",
    " end",
)


def recorded() -> dict[str, str]:
    parts = re.split(r"^### (.*)\n", RECORDED.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def streamed(client: httpx.Client, fields: Mapping[str, Any]) -> str:
    """What a client reads, without what differs each time."""
    asked = body(**fields, stream=True)
    if "prompt" in fields:
        del asked["messages"]
    response = client.post(COMPLETIONS if "prompt" in fields else CHAT, json=asked)
    assert response.status_code == 200, response.text
    text = re.sub(r"(chatcmpl|cmpl)-[0-9a-f]{24}", r"\1-ID", response.content.decode())
    return re.sub(r"fp_[0-9a-f]+", "fp_0", re.sub(r'"created":\d+', '"created":0', text))


def script(name: str, engine: ScriptedEngine, tokenizer: ByteTokenizer) -> None:
    ids = [tokenizer.id_of(piece) for piece in PIECES]
    engine.scripts = [Script([] if name == "nothing" else ids), Script(ids[:3])]
    if "fail" in name:
        engine.failure = EngineDied("gone")
        engine.scripts = [Script(ids, fail_after=3), Script(ids[:2])]
    engine.report = CacheReport(num_device_tokens=3, num_computed_tokens=9, parted_at=3)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_is_what_was_recorded(
    client: httpx.Client, engine: ScriptedEngine, tokenizer: ByteTokenizer, name: str
) -> None:
    script(name, engine, tokenizer)

    assert streamed(client, REQUESTS[name]) == recorded()[name]


def test_every_recording_is_of_a_request() -> None:
    assert recorded().keys() == REQUESTS.keys()
