"""/admin: who may come, and what the cache's administrators see and share."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from engine.cache_messages import CacheEvent, CacheEvents, CacheReport, NodePage, NodeView, Pinned
from engine.errors import EngineDied
from tests.fakes import ScriptedEngine
from tests.gateway.stored import Stored
from tests.gateway.talk import chat, error_of, events_of

PREFIXES = "/admin/prefixes"
SYSTEM = {"role": "system", "content": "You are the house's own assistant."}
NODE = NodeView(
    serial=7, parent=0, start=0, num_tokens=20, num_blocks=2, num_children=1, num_locks=0, num_pins=1,
    num_uses=3, priority=0, namespace="ab", age_seconds=1.5, idle_seconds=0.5,
)  # fmt: skip


def wait_for(client: httpx.Client, path: str, completion_id: str) -> list[Any]:
    """The list, once it holds an entry: it is written when the client has its answer already."""
    deadline = time.monotonic() + 5
    while True:
        data = list(client.get(path).json()["data"])
        if any(each["id"] == completion_id for each in data):
            return data
        assert time.monotonic() < deadline, "the request is not listed"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/cache"), ("GET", "/admin/cache/events"), ("GET", "/admin/requests"),
        ("GET", "/admin/warnings"), ("GET", PREFIXES), ("POST", PREFIXES), ("DELETE", f"{PREFIXES}/x"),
        ("GET", "/admin/metrics"), ("GET", "/admin"), ("GET", "/admin/nothing"), ("GET", "//admin/cache"),
        ("GET", "/ADMIN/cache"), ("GET", "/%61dmin/cache"),
    ],
)  # fmt: skip
def test_a_key_without_the_right_is_refused(
    stored: Stored, engine: ScriptedEngine, method: str, path: str
) -> None:
    url = str(stored.bob.base_url).rstrip("/") + path

    response = stored.bob.request(method, url, json={"messages": [SYSTEM]})

    assert error_of(response, 403)["code"] == "insufficient_permissions"
    assert engine.cache_calls == engine.submits == []


def test_an_administrator_reads_the_metrics_too(stored: Stored) -> None:
    assert stored.alice.get("/admin/metrics").status_code == 200
    assert stored.alice.get("/metrics").status_code == 200


def test_without_keys_everybody_is_an_administrator(client: httpx.Client) -> None:
    assert client.get("/admin/requests").status_code == 200


def test_the_tree_is_told_in_pages(stored: Stored, engine: ScriptedEngine) -> None:
    engine.page = NodePage(ticket=0, nodes=[NODE], next=7)

    page = stored.alice.get("/admin/cache", params={"tier": "disk", "after": "3", "limit": "1"}).json()

    (call,) = engine.calls_of("nodes")
    assert call.arguments == {"tier": "disk", "after": 3, "limit": 1}
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == ("list", True, 7, 7)
    assert page["data"][0]["num_tokens"] == 20
    assert page["data"][0]["namespace"] == "ab"


@pytest.mark.parametrize(
    ("query", "param"),
    [({"tier": "tape"}, "tier"), ({"after": "-1"}, "after"), ({"after": "9" * 30}, "after"),
     ({"limit": "0"}, "limit"), ({"limit": "101"}, "limit")],
)  # fmt: skip
def test_a_page_of_the_tree_that_cannot_be_is_a_400(
    stored: Stored, query: dict[str, str], param: str
) -> None:
    assert error_of(stored.alice.get("/admin/cache", params=query), 400)["param"] == param


@pytest.mark.parametrize("path", ["/admin/cache", "/admin/cache/events"])
def test_without_an_engine_the_tree_is_asked_for_again(
    stored: Stored, engine: ScriptedEngine, path: str
) -> None:
    engine.is_ready = False

    error_of(stored.alice.get(path), 503)


def test_what_happens_in_the_cache_is_a_stream(stored: Stored, engine: ScriptedEngine) -> None:
    event = CacheEvent(
        kind="committed", tier="device", namespace=b"\xab", start=0, num_tokens=16, parent="p", names=["n"]
    )
    engine.events = [CacheEvents([event]), CacheEvents([], num_lost=2)]

    first, second, end = events_of(stored.alice.get("/admin/cache/events").text)

    assert first == {
        "object": "cache.events",
        "events": [
            {"kind": "committed", "tier": "device", "namespace": "ab", "start": 0, "num_tokens": 16,
             "parent": "p", "names": ["n"]}
        ],
        "num_lost": 0,
    }  # fmt: skip
    assert second == {"object": "cache.events", "events": [], "num_lost": 2}
    assert end["error"]["code"] == "engine_unavailable"
    engine.events = []


def test_the_last_requests_are_told_with_their_tiers_newest_first(
    stored: Stored, engine: ScriptedEngine
) -> None:
    engine.report = CacheReport(num_device_tokens=5, num_computed_tokens=9, parted_at=5, reason="new")
    older, newer = [chat(client).json()["id"] for client in (stored.alice, stored.bob)]

    data = wait_for(stored.alice, "/admin/requests", newer)
    rest = stored.alice.get("/admin/requests", params={"after": newer, "limit": 1}).json()

    first = data[0]
    assert first.pop("ttft_ms") >= 0
    assert first.pop("created_at") > 0
    assert first == {
        "id": newer,
        "object": "cache.request",
        "tenant": "bob",
        "tokens": {"device": 5, "host": 0, "disk": 0},
        "computed": 9,
        "parted_at": 5,
        "reason": "new",
    }
    assert [each["id"] for each in rest["data"]] == [older]


def test_prompts_with_a_clock_in_them_are_warned_of_once(stored: Stored, engine: ScriptedEngine) -> None:
    system = "You are a helpful assistant of the house. It is {}. Answer briefly and kindly, please."
    counter = stored.services.metrics.volatile_prompts
    before = counter._value.get()

    with capture_logs() as lines:
        for minute in range(5):
            messages = [
                {"role": "system", "content": system.format(f"10:0{minute}")},
                {"role": "user", "content": "CANARY"},
            ]
            chat(stored.bob, messages=messages)
            chat(stored.bob, messages=[SYSTEM], cache="read-only")

    warnings = stored.alice.get("/admin/warnings").json()["data"]
    (line,) = [line for line in lines if line["event"] == "prompt.volatile"]
    assert (line["tenant"], line["message"], line["offset"]) == ("bob", 0, system.index("{}") + 4)
    assert line["lost_characters"] == len(system) - 2 + 5 - line["offset"] + len("CANARY")
    assert "CANARY" not in repr(lines)
    assert counter._value.get() == before + 3
    assert [(each["tenant"], each["offset"]) for each in warnings] == [("bob", line["offset"])]


@pytest.fixture
def prefix(stored: Stored, engine: ScriptedEngine) -> Iterator[dict[str, Any]]:
    """A shared prefix, for as long as the test runs."""
    made = stored.alice.post(PREFIXES, json={"name": "house", "messages": [SYSTEM]})
    assert made.status_code == 200, made.text
    yield made.json()
    stored.alice.delete(f"{PREFIXES}/{made.json()['id']}")


def test_a_shared_prefix_is_computed_and_kept_for_all(
    stored: Stored, engine: ScriptedEngine, prefix: dict[str, Any]
) -> None:
    listed = stored.alice.get(PREFIXES).json()
    chat(stored.bob, messages=[SYSTEM, {"role": "user", "content": "hi"}])

    shared, asked = engine.submits
    (pin,) = engine.calls_of("pin")
    assert (shared.namespace, shared.sampling.max_tokens, shared.sampling.temperature) == (b"", 1, 0.0)
    assert (pin.arguments["name"], pin.arguments["seconds"]) == (prefix["id"], None)
    assert (pin.arguments["namespace"], pin.arguments["tokens"]) == (b"", shared.prompt)
    assert asked.prompt.startswith(shared.prompt)
    assert (prefix["object"], prefix["name"], prefix["messages"]) == ("shared_prefix", "house", [SYSTEM])
    assert prefix["cache"] == {"tokens": len(shared.prompt) // 4, "tiers": {}}
    assert listed["data"] == [prefix]


def test_a_shared_prefix_that_is_deleted_is_forgotten(
    stored: Stored, engine: ScriptedEngine, prefix: dict[str, Any]
) -> None:
    path = f"{PREFIXES}/{prefix['id']}"

    gone = stored.alice.delete(path)

    (unpinned,), (forgotten,) = engine.calls_of("unpin"), engine.calls_of("forget")
    assert gone.json() == {"id": prefix["id"], "object": "shared_prefix.deleted", "deleted": True}
    assert unpinned.arguments["name"] == prefix["id"]
    assert forgotten.arguments == {
        "namespace": b"",
        "tokens": engine.submits[0].prompt,
        "num_kept": 0,
    }
    error_of(stored.alice.delete(path), 404)
    assert stored.alice.get(PREFIXES).json()["data"] == []


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({}, "messages"), ({"messages": []}, "messages"), ({"messages": [SYSTEM], "nme": "x"}, "nme"),
        ({"messages": [SYSTEM], "name": ""}, "name"), ({"messages": [SYSTEM], "name": "a\u0000"}, "name"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
    ],
)  # fmt: skip
def test_a_bad_prefix_is_refused_by_name(
    stored: Stored, engine: ScriptedEngine, content: dict[str, Any], param: str
) -> None:
    assert error_of(stored.alice.post(PREFIXES, json=content), 400)["param"] == param
    assert engine.submits == []


def test_a_prefix_that_cannot_be_kept_is_neither_stored_nor_left_to_be_found(
    stored: Stored, engine: ScriptedEngine
) -> None:
    before, engine.pinned = engine.pinned, Pinned(ticket=0, num_tokens=0, message="no room")

    error = error_of(stored.alice.post(PREFIXES, json={"messages": [SYSTEM]}), 409)

    engine.pinned = before
    assert error["code"] == "pin_refused"
    assert stored.alice.get(PREFIXES).json()["data"] == []
    (forgotten,) = engine.calls_of("forget")
    assert (forgotten.arguments["namespace"], forgotten.arguments["tokens"]) == (
        b"",
        engine.submits[0].prompt,
    )


def test_an_engine_that_dies_keeps_the_prefix_in_the_list(
    stored: Stored, engine: ScriptedEngine, prefix: dict[str, Any]
) -> None:
    engine.cache_failure = EngineDied("x")

    error_of(stored.alice.delete(f"{PREFIXES}/{prefix['id']}"), 503)

    (told,) = stored.alice.get(PREFIXES).json()["data"]
    assert (told["id"], told["cache"]) == (prefix["id"], None)
    engine.cache_failure = None
