"""The layers around the routes: ids, limits, keys, CORS, paths, and what is logged."""

import time
from collections.abc import Iterator

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.conversation.prompt import Prompts
from gateway.settings import Settings
from tests.fakes import ScriptedEngine
from tests.gateway.talk import CHAT, body, chat, error_of
from tests.live import live_server, scripted_services

ALICE, BOB = "alice-alice-alice", "bob-bob-bob-bob-bob"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def locked(shared_engine: ScriptedEngine, prompts: Prompts) -> Iterator[httpx.Client]:
    """A server with two tenants."""
    keys = [{"key": ALICE, "tenant": "a", "metrics": True}, {"key": BOB, "tenant": "b"}]
    settings = Settings.model_validate({"keys": keys})
    with (
        live_server(scripted_services(shared_engine, prompts), settings) as live,
        httpx.Client(base_url=live.url) as client,
    ):
        yield client


@pytest.mark.parametrize("path", ["/x", "/v1", "/v1/chat", "/v1/chat/completions/", "/v2/models"])
def test_an_unknown_path_is_a_404(client: httpx.Client, path: str) -> None:
    assert error_of(client.get(path), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, "POST"), ("DELETE", "/v1/models", "GET"), ("PUT", "/health", "GET")],
)
def test_a_wrong_method_is_a_405_that_names_the_right_one(
    client: httpx.Client, method: str, path: str, allowed: str
) -> None:
    response = client.request(method, path)

    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert allowed in response.headers["allow"]


def test_a_body_over_the_limit_is_a_413_announced_or_not(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    large = b"x" * ((1 << 20) + 1)

    error_of(client.post(CHAT, content=large), 413)
    error_of(
        client.post(CHAT, content=(large[start : start + 65536] for start in range(0, len(large), 65536))),
        413,
    )
    assert chat(client).status_code == 200


def test_a_plain_request_id_is_kept_and_any_other_replaced(client: httpx.Client) -> None:
    kept = chat_with_id(client, b"my-id_1.2")

    assert kept == "my-id_1.2"
    for forged in (b"x" * 129, b"a%0d%0aSet-Cookie: x=1", b"\xe9\xff", b"", b"a b"):
        assert chat_with_id(client, forged).startswith("req-")


def chat_with_id(client: httpx.Client, request_id: bytes) -> str:
    response = client.post(CHAT, json=body(), headers=[(b"x-request-id", request_id)])
    assert "set-cookie" not in response.headers
    return str(response.headers["x-request-id"])


def test_errors_carry_the_request_id_too(client: httpx.Client) -> None:
    for response in (client.get("/x"), chat(client, n=0), client.post(CHAT, content=b"x" * (2 << 20))):
        assert response.headers["x-request-id"]


def test_a_request_is_one_line_without_a_word_of_its_text(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    canary = [{"role": "user", "content": "CANARY-7f3a"}]

    with capture_logs() as lines:
        chat(client, messages=canary)
        chat(client, messages=canary, n=-1)
        chat(client, messages="CANARY-7f3a")
        engine.is_ready = False
        chat(client, messages=canary)
        # the line is written after the client has its answer
        deadline = time.monotonic() + 5
        while len(lines) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)

    finished = [line for line in lines if line["event"] == "request.finished"]
    assert [line["status"] for line in finished] == [200, 400, 400, 503]
    assert "CANARY" not in repr(lines)
    first = finished[0]
    assert (first["tenant"], first["model"], first["finish_reason"]) == ("default", "scripted", "stop")
    assert first["completion_tokens"] == 3
    assert 0 <= first["ttft_ms"] <= first["total_ms"]


def test_a_browser_from_a_known_page_may_call(client: httpx.Client) -> None:
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}

    known = client.options(CHAT, headers={"origin": "https://a.example"} | ask)
    deleting = client.options(
        "/v1/sessions/x", headers={"origin": "https://a.example", "access-control-request-method": "DELETE"}
    )
    stranger = client.options(CHAT, headers={"origin": "https://b.example"} | ask)

    assert known.headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in stranger.headers
    assert deleting.status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", CHAT, "/metrics", "/v1/nothing"])
def test_without_a_key_nothing_is_told(locked: httpx.Client, path: str) -> None:
    response = locked.get(path)

    assert error_of(response, 401)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", [b"Bearer k\xe9y", b"Bearer", b"Basic x", b"Bearer " + b"x" * 30_000])
def test_a_strange_key_is_a_401(locked: httpx.Client, header: bytes) -> None:
    for path in ("/v1/models", "/metrics"):
        error_of(locked.get(path, headers=[(b"authorization", header)]), 401)


def test_a_huge_body_without_a_key_is_not_read(locked: httpx.Client, engine: ScriptedEngine) -> None:
    error_of(locked.post(CHAT, content=b"x" * (9 << 20)), 401)


def test_metrics_need_a_key_with_the_right(locked: httpx.Client) -> None:
    for path in ("/metrics", "/admin/metrics"):
        assert locked.get(path, headers=bearer(ALICE)).status_code == 200
        assert error_of(locked.get(path, headers=bearer(BOB)), 403)["code"] == "insufficient_permissions"


def test_health_needs_no_key(locked: httpx.Client, engine: ScriptedEngine) -> None:
    assert locked.get("/health").status_code == 200


def test_tenants_see_different_namespaces(locked: httpx.Client, engine: ScriptedEngine) -> None:
    for key in (ALICE, BOB, ALICE):
        assert locked.post(CHAT, json=body(), headers=bearer(key)).status_code == 200

    alice, bob, again = [submit.namespace for submit in engine.submits]
    assert alice == again != bob
    assert len(alice) == 32
