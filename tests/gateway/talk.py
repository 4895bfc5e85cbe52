"""Saying things to a server and reading its streams, as the tests of the gateway do."""

import json
import time
from typing import Any

import httpx

from gateway.store.usage import UsageRow
from tests.live import LiveServer

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "body",
    "chat",
    "choices_of",
    "complete",
    "content_of",
    "error_of",
    "events_of",
    "finish_of",
    "row_of",
    "stream",
    "stream_completion",
    "text_of",
]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def body(**fields: Any) -> dict[str, Any]:
    """A chat request; fields add to it and replace."""
    return {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]} | fields


def chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    """Ask for a whole answer."""
    return client.post(CHAT, json=body(**fields))


def stream(client: httpx.Client, **fields: Any) -> list[Any]:
    """Ask for a stream and read it to its end: every data event decoded, the last of them "[DONE]"."""
    response = chat(client, stream=True, **fields)
    assert response.status_code == 200, response.text
    return events_of(response.text)


def complete(client: httpx.Client, **fields: Any) -> httpx.Response:
    """Ask for a whole completion."""
    return client.post(COMPLETIONS, json={"model": "scripted", "prompt": "abc"} | fields)


def stream_completion(client: httpx.Client, **fields: Any) -> list[Any]:
    """Ask for a completion as a stream and read it to its end."""
    response = complete(client, stream=True, **fields)
    assert response.status_code == 200, response.text
    return events_of(response.text)


def text_of(events: list[Any], index: int = 0) -> str:
    """One completion's joined text."""
    return "".join(each["text"] for each in choices_of(events) if each["index"] == index)


def events_of(text: str) -> list[Any]:
    """The data events of a stream; comments are skipped."""
    blocks = [block for block in text.split("\n\n") if block.startswith("data: ")]
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


def content_of(events: list[Any], index: int = 0) -> str:
    """One choice's joined content."""
    return "".join(
        delta["delta"].get("content", "") for delta in choices_of(events) if delta["index"] == index
    )


def finish_of(events: list[Any], index: int = 0) -> list[str]:
    """Every reason that a choice was given for its end: there should be one."""
    found = [delta["finish_reason"] for delta in choices_of(events) if delta["index"] == index]
    return [reason for reason in found if reason is not None]


def choices_of(events: list[Any]) -> list[Any]:
    """The choices of all chunks in order."""
    return [choice for event in events if isinstance(event, dict) for choice in event.get("choices", ())]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a response, which must be one and have this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = json.loads(response.text, parse_constant=lambda name: pytest_fail(name))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return dict(error)


def row_of(server: LiveServer, completion_id: str) -> UsageRow:
    """A request's row of usage: it is added when the last byte has gone out, maybe after it came in."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for row in server.services.usage.waiting:
            if row.completion_id == completion_id:
                return row
        time.sleep(0.01)
    raise AssertionError("no row of usage")


def pytest_fail(name: str) -> None:
    """JSON has no such constant."""
    raise AssertionError(f"{name} is not JSON")
