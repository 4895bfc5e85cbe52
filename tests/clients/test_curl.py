"""`curl -N`: the bytes of a stream as they come over the wire."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.clients.occupied import occupied
from tests.clients.processes import Served

BODY = {
    "model": "default",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 12,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def curl(served: Served, *options: str, **fields: Any) -> Sequence[str]:
    return (
        "curl", "-sSN", "--noproxy", "*", *options, f"{served.base_url}/chat/completions",
        "-H", "content-type: application/json", "-d", json.dumps(BODY | fields),
    )  # fmt: skip


def output_of(command: Sequence[str]) -> bytes:
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


def test_a_streams_events_come_in_order(served: Served) -> None:
    head, _, stream = output_of(curl(served, "-i")).partition(b"\r\n\r\n")

    assert b"content-type: text/event-stream; charset=utf-8" in head.lower()
    assert stream.endswith(b"\n\n")
    *events, done = [event for event in stream.decode().split("\n\n")[:-1] if not event.startswith(":")]
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "Paris" in "".join(delta["content"] for delta in deltas[:-1])
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert set(reasons[:-1]) == {None}
    assert reasons[-1] in ("stop", "length")
    assert chunks[-1]["choices"] == []
    assert 0 < chunks[-1]["usage"]["completion_tokens"] <= 12
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_prompt_that_waits_is_kept_alive_by_comments(narrow: Served) -> None:
    with (
        occupied(narrow, num_waiting=0) as held,
        subprocess.Popen(curl(narrow, "-m", "60"), stdout=subprocess.PIPE) as asking,
    ):
        assert asking.stdout is not None
        first = asking.stdout.readline()
        held.let_go()
        rest = asking.stdout.read()

    assert asking.returncode == 0
    progress = json.loads(first.removeprefix(b": keep-alive "))
    assert progress["prompt_tokens"] > progress["computed"] == 0
    assert rest.endswith(b"data: [DONE]\n\n")


def test_a_refusal_is_json_and_a_status(served: Served) -> None:
    answer = output_of(curl(served, "-w", "\n%{http_code} %{content_type}", temperature=3)).decode()

    body, _, written = answer.rpartition("\n")
    assert written == "400 application/json"
    assert json.loads(body)["error"]["param"] == "temperature"
