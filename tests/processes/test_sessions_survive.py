"""A session outlives the process: parked, killed, served again, and hardly anything is computed."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.served import ServedModel, stemma_serve

pytestmark = pytest.mark.anyio

SETTINGS = {"STEMMA_ENGINE__KV_BYTES": "256MiB", "STEMMA_CACHE__DISK_BYTES": "256MiB"}
TEXT = " ".join(f"In the year {year} the river rose to mark {year % 37}." for year in range(1500, 1620))


QUESTION = "Which year was the highest?"


def turn(server: ServedModel, session: str, text: str) -> dict[str, Any]:
    """One turn of a session."""
    return ask(server, session_id=session, messages=[{"role": "user", "content": text}])


def ask(server: ServedModel, **fields: Any) -> dict[str, Any]:
    """A chat completion."""
    body = {"model": "default", "max_tokens": 16, "temperature": 0, "cache": {"explain": True}, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120.0)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def call(server: ServedModel, method: str, path: str, **json: Any) -> dict[str, Any]:
    answer = httpx.request(method, f"{server.url}{path}", json=json or None, timeout=120.0)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def counter(server: ServedModel, name: str) -> float:
    samples = httpx.get(f"{server.url}/admin/metrics").json()["samples"]
    return float(next(sample["value"] for sample in samples if sample["name"] == name))


def said(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_a_parked_session_survives_a_kill(default_model_path: Path, tmp_path: Path) -> None:
    with stemma_serve(default_model_path, tmp_path, **SETTINGS) as server:
        session = call(server, "POST", "/v1/sessions", metadata={"topic": "rivers"})["id"]
        first = turn(server, session, TEXT)
        history = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": said(first)}]
        question = {"role": "user", "content": QUESTION}
        expected = said(ask(server, messages=[*history, question]))
        parked = call(server, "POST", f"/v1/sessions/{session}/park")
        server.process.kill()
        server.process.wait()

    with stemma_serve(default_model_path, tmp_path, **SETTINGS) as server:
        use = call(server, "GET", f"/v1/sessions/{session}")["cache"]
        second = turn(server, session, QUESTION)
        computed = counter(server, "stemma_computed_prompt_tokens_total")

    num_prompt = first["usage"]["prompt_tokens"]
    assert num_prompt > 2000
    assert parked["parked_tokens"] >= num_prompt
    assert use["tiers"]["disk"]["tokens"] == parked["parked_tokens"]
    assert use["tiers"]["device"]["tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == parked["parked_tokens"]
    assert second["cache"]["tokens"]["disk"] == parked["parked_tokens"]
    assert computed < 100
    assert said(second) == expected


def test_a_stop_lets_what_was_said_last_reach_the_disk(default_model_path: Path, tmp_path: Path) -> None:
    with stemma_serve(default_model_path, tmp_path, **SETTINGS) as server:
        session = call(server, "POST", "/v1/sessions")["id"]
        turn(server, session, TEXT[:2000])

    with stemma_serve(default_model_path, tmp_path, **SETTINGS) as server:
        second = turn(server, session, "And then?")

    assert second["cache"]["computed"] < 100


def test_what_the_disk_holds_of_another_form_is_computed_again(
    default_model_path: Path, tmp_path: Path
) -> None:
    with stemma_serve(default_model_path, tmp_path, **SETTINGS) as server:
        session = call(server, "POST", "/v1/sessions")["id"]
        turn(server, session, TEXT[:1000])
        call(server, "POST", f"/v1/sessions/{session}/park")

    other = SETTINGS | {"STEMMA_ENGINE__BLOCK_SIZE": "32"}
    with stemma_serve(default_model_path, tmp_path, **other) as server:
        second = turn(server, session, "And then?")

    assert second["cache"]["tokens"] == {"device": 0, "host": 0, "disk": 0}
    assert said(second)


def test_a_second_server_over_one_folder_is_told_so(
    default_model_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        stemma_serve(default_model_path, tmp_path, **SETTINGS),
        pytest.raises(AssertionError, match="ended with code 1"),
        stemma_serve(default_model_path, tmp_path, **SETTINGS),
    ):
        pass

    assert "is in use by another engine" in capfd.readouterr().err
