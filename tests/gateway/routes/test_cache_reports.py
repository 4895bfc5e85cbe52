"""The field `cache` of a chat request: what reaches the engine, and what the client is told."""

from typing import Any

import pytest

from engine.cache_messages import CacheReport
from tests.fakes import ScriptedEngine
from tests.gateway.stored import Stored
from tests.gateway.talk import chat, error_of, stream

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yes?"}


def parted(token: int, **changes: Any) -> CacheReport:
    values = {
        "num_device_tokens": 7, "num_host_tokens": 2, "num_disk_tokens": 1, "num_computed_tokens": 30,
        "num_copied_blocks": 1, "parted_at": token, "reason": "parted",
    }  # fmt: skip
    return CacheReport(**(values | changes))


@pytest.mark.parametrize(
    ("cache", "is_side", "priority"),
    [
        (None, False, 0), ("read-write", False, 0), ("read-only", True, 0), ({}, False, 0),
        ({"mode": "read-only", "priority": "low"}, True, -1), ({"priority": "high"}, False, 1),
        ({"mode": None, "priority": None, "explain": None}, False, 0), ({"priority": "normal"}, False, 0),
    ],
)  # fmt: skip
def test_wishes_reach_the_engine(
    stored: Stored, engine: ScriptedEngine, cache: object, is_side: bool, priority: int
) -> None:
    assert chat(stored.alice, cache=cache).status_code == 200

    (submit,) = engine.submits
    assert (submit.is_side, submit.priority) == (is_side, priority)


@pytest.mark.parametrize(
    ("cache", "param"),
    [
        ("readonly", "cache"), (5, "cache"), ([], "cache"), (True, "cache"), ({"mode": "x"}, "cache.mode"),
        ({"explain": 1}, "cache.explain"), ({"priority": 1}, "cache.priority"), ({"ttl": 5}, "cache.ttl"),
    ],
)  # fmt: skip
def test_a_wish_that_nobody_knows_is_refused_by_name(
    stored: Stored, engine: ScriptedEngine, cache: object, param: str
) -> None:
    error = error_of(chat(stored.alice, cache=cache), 400)

    assert error["param"] == param
    assert engine.submits == []


def test_a_client_that_asks_is_told_where_its_prompt_came_from(
    stored: Stored, engine: ScriptedEngine
) -> None:
    engine.report = parted(9)

    told = chat(stored.alice, cache={"explain": True}, messages=[SYSTEM, USER]).json()["cache"]

    assert "date" in told.pop("hint")
    assert told == {
        "tokens": {"device": 7, "host": 2, "disk": 1},
        "computed": 30,
        "copied_blocks": 1,
        "parted_at": {"token": 9, "message": 0},
        "reason": "parted",
    }


def test_who_does_not_ask_is_not_told(stored: Stored, engine: ScriptedEngine) -> None:
    engine.report = parted(9)

    for cache in (None, "read-write", {"explain": False}):
        assert "cache" not in chat(stored.alice, cache=cache).json()
        assert all("cache" not in event for event in stream(stored.alice, cache=cache)[:-1])


@pytest.mark.parametrize("reason", ["none", "bypassed"])
def test_where_nothing_parted_no_place_is_told(stored: Stored, engine: ScriptedEngine, reason: str) -> None:
    engine.report = parted(0, reason=reason)

    told = chat(stored.alice, cache={"explain": True}).json()["cache"]

    assert (told["parted_at"], told["reason"]) == (None, reason)
    assert told["hint"]


def test_every_token_of_a_prompt_is_in_the_message_that_wrote_it(
    stored: Stored, engine: ScriptedEngine
) -> None:
    messages = [SYSTEM, USER, ASSISTANT, USER]
    lengths = [len(f"{message['role']}\n{message['content']}\n") + 2 for message in messages]
    expected = [place for place, length in enumerate(lengths) for _ in range(length)]
    boundaries = [sum(lengths[:place]) + step for place in range(5) for step in (-1, 0, 1)]

    found = {}
    for token in boundaries[1:]:
        engine.report = parted(token)
        told = chat(stored.alice, cache={"explain": True}, messages=messages).json()["cache"]
        found[token] = told["parted_at"]["message"]

    assert found == {token: [*expected, None, None][token] for token in boundaries[1:]}


def test_messages_are_counted_from_the_beginning_of_a_session(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new(messages=[SYSTEM, USER, ASSISTANT])
    engine.report = parted(len("system\nBe brief.\nuser\nhi\nassistant\nyes?\n") + 6 + 1, reason="new")

    told = chat(stored.alice, session_id=session["id"], cache={"explain": True}).json()["cache"]

    assert told["parted_at"]["message"] == 3


@pytest.mark.parametrize(("options", "place"), [({}, -2), ({"include_usage": True}, -2)])
def test_a_stream_tells_once_in_its_last_chunk(
    stored: Stored, engine: ScriptedEngine, options: dict[str, bool], place: int
) -> None:
    engine.report = parted(0, reason="empty")

    events = stream(stored.alice, cache={"explain": True}, n=2, stream_options=options or None)

    assert [place for place, event in enumerate(events) if "cache" in event] == [len(events) + place]
    assert events[place]["cache"]["reason"] == "empty"
    assert bool(events[place]["choices"]) != bool(options)


def test_cached_tokens_are_told_as_before(stored: Stored, engine: ScriptedEngine) -> None:
    engine.report, engine.num_cached_tokens = parted(9), 10

    usage = chat(stored.alice, cache={"explain": True}).json()["usage"]

    assert usage["prompt_tokens_details"] == {"cached_tokens": 10, "cache_write_tokens": 30}
