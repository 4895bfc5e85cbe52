"""What deleting a session leaves behind, and what it takes from others."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.served import ServedModel, stemma_serve

TEXT = " ".join(f"In the year {year} the river rose." for year in range(1500, 1520))


@pytest.fixture(scope="module")
def server(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    data = tmp_path_factory.mktemp("data")
    with stemma_serve(default_model_path, data, STEMMA_CACHE__HOST_BYTES="64MiB") as served:
        yield served


def call(server: ServedModel, method: str, path: str, **json: Any) -> dict[str, Any]:
    answer = httpx.request(method, f"{server.url}{path}", json=json or None, timeout=60.0)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def turn(server: ServedModel, session: str, text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {
        "model": "default",
        "session_id": session,
        "messages": messages,
        "max_tokens": 20,
        "temperature": 0,
    }
    return call(server, "POST", "/v1/chat/completions", **body, **fields)


def cut_turn(server: ServedModel, session: str, text: str) -> None:
    """A turn whose client leaves after a few events."""
    messages = [{"role": "user", "content": text}]
    body = {
        "model": "default",
        "session_id": session,
        "messages": messages,
        "stream": True,
        "ignore_eos": True,
    }
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60.0) as response:
        for number, _ in enumerate(response.iter_lines()):
            if number == 40:
                break


def cached_blocks(server: ServedModel) -> dict[str, int]:
    """Cached blocks of each tier, when nothing runs and nothing is written any more."""
    while True:
        samples = call(server, "GET", "/admin/metrics")["samples"]
        values = {sample["name"]: sample["value"] for sample in samples}
        busy = [values["stemma_kv_waiting_writes"], values["stemma_num_requests_running"]]
        held = sum(s["value"] for s in samples if s["labels"].get("state") == "held")
        if not any(busy) and not held:
            return {
                sample["labels"]["tier"]: int(sample["value"])
                for sample in samples
                if sample["name"] == "stemma_kv_blocks" and sample["labels"]["state"] == "cached"
            }
        time.sleep(0.05)


def test_a_deleted_session_leaves_nothing_of_a_turn_that_was_cut(server: ServedModel) -> None:
    before = cached_blocks(server)
    session = call(server, "POST", "/v1/sessions", messages=[{"role": "user", "content": f"1 {TEXT}"}])["id"]
    turn(server, session, "Is that all?")
    kept = cached_blocks(server)
    cut_turn(server, session, f"My secret is 4711. {TEXT}")

    after_the_cut = cached_blocks(server)
    call(server, "DELETE", f"/v1/sessions/{session}")

    assert after_the_cut == kept, "what was cut is forgotten at once"
    assert kept["disk"] > before["disk"]
    assert cached_blocks(server) == before


def test_a_deleted_session_leaves_nothing_of_an_answer_that_a_stop_string_cut(server: ServedModel) -> None:
    before = cached_blocks(server)
    session = call(server, "POST", "/v1/sessions", messages=[{"role": "user", "content": f"2 {TEXT}"}])["id"]
    turn(server, session, "Tell me about Paris in three sentences.", stop=["a", "e"])
    turn(server, session, "Is that all?")

    call(server, "DELETE", f"/v1/sessions/{session}")

    assert cached_blocks(server) == before


def test_a_deleted_session_takes_nothing_from_another_that_begins_with_it(server: ServedModel) -> None:
    sessions = []
    for _ in range(2):
        made = call(server, "POST", "/v1/sessions", messages=[{"role": "user", "content": f"3 {TEXT}"}])
        turn(server, made["id"], "Is that all?")
        sessions.append(made["id"])
    cached_blocks(server)
    before = call(server, "GET", f"/v1/sessions/{sessions[1]}")["cache"]["tiers"]

    call(server, "DELETE", f"/v1/sessions/{sessions[0]}")

    after = call(server, "GET", f"/v1/sessions/{sessions[1]}")["cache"]["tiers"]
    assert {tier: use["tokens"] for tier, use in after.items()} == {
        tier: use["tokens"] for tier, use in before.items()
    }
