"""/v1/sessions: what is kept, told, moved, forked and forgotten, and for whom."""

from typing import Any

import httpx
import pytest

from engine.cache_messages import Pinned, TierUse
from engine.errors import EngineDied
from gateway.store.sessions import SessionStore
from tests.fakes import ByteTokenizer, ScriptedEngine
from tests.gateway.stored import SESSIONS, Stored
from tests.gateway.talk import CHAT, body, error_of

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yes?"}
UNKNOWN = f"{SESSIONS}/sess_{'0' * 24}"


def delete(client: httpx.Client, session_id: str) -> httpx.Response:
    return client.delete(f"{SESSIONS}/{session_id}")


def turn(client: httpx.Client, session_id: str, **fields: Any) -> httpx.Response:
    return client.post(CHAT, json=body(session_id=session_id, **fields))


def test_a_session_is_told_as_it_was_made(stored: Stored) -> None:
    made = stored.new(metadata={"topic": "x"}, messages=[USER, ASSISTANT])

    told = stored.alice.get(f"{SESSIONS}/{made['id']}").json()

    assert made["id"].startswith("sess_")
    assert len(made["id"]) == 29
    assert (made["object"], made["model"], made["parent_id"]) == ("session", "scripted", None)
    assert (made["metadata"], made["num_turns"], made["num_messages"]) == ({"topic": "x"}, 0, 2)
    assert "cache" not in made
    assert told.pop("cache") == {"tokens": len(b"user\nhi\nassistant\nyes?\n") + 4, "tiers": {}}
    assert told == made


def test_an_empty_body_makes_an_empty_session(stored: Stored) -> None:
    made = stored.alice.post(SESSIONS).json()

    assert (made["metadata"], stored.messages(made["id"])) == ({}, [])
    assert stored.alice.get(f"{SESSIONS}/{made['id']}").json()["cache"] == {"tokens": 0, "tiers": {}}


def test_of_messages_what_the_model_could_read_is_kept(stored: Stored) -> None:
    sent: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "é\u0000🍕", "extra": 1}],
            "name": "n",
            "extra": {"a": [1]},
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "content": "'; drop table sessions; --", "tool_call_id": "1"},
    ]

    session = stored.new(messages=sent)

    del sent[0]["extra"], sent[0]["content"][0]["extra"]
    assert stored.messages(session["id"]) == sent


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {str(each): "" for each in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"": "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": "x"}, "metadata"),
        ({"messages": [{"role": "robot"}]}, "messages.0.role"),
        ({"messages": "x"}, "messages"),
        ({"messages": [USER] * 4097}, "messages"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"metadta": {}}, "metadta"),
    ],
)
def test_a_bad_session_is_refused_by_name(stored: Stored, fields: dict[str, Any], param: str) -> None:
    error = error_of(stored.alice.post(SESSIONS, json=fields), 400)

    assert error["param"] == param


def test_the_limits_of_metadata_are_taken(stored: Stored) -> None:
    metadata = {f"{each:064}": "é" * 512 for each in range(16)}

    assert stored.new(metadata=metadata)["metadata"] == metadata


@pytest.mark.parametrize("depth", [40, 400])
def test_what_nests_too_deeply_to_be_stored_is_a_400(stored: Stored, depth: int) -> None:
    call = '{"function":{"name":"f"},"x":' + "[" * depth + "]" * depth + "}"
    deep = f'{{"role":"assistant","content":"a","tool_calls":[{call}]}}'

    made = stored.alice.post(SESSIONS, content=f'{{"messages":[{deep}]}}')
    chat = stored.alice.post(
        CHAT, content=f'{{"model":"scripted","session_id":"{stored.new()["id"]}","messages":[{deep}]}}'
    )

    for response in (made, chat):
        assert error_of(response, 400)["param"] == "messages.0"


def test_a_model_that_nobody_has_is_a_404(stored: Stored) -> None:
    error = error_of(stored.alice.post(SESSIONS, json={"model": "nobody"}), 404)

    assert error["code"] == "model_not_found"
    assert stored.new(model="gpt-4o")["model"] == "scripted"


def test_sessions_are_listed_in_pages_of_the_tenants_own(stored: Stored) -> None:
    ids = [stored.new(metadata={"list": "1"})["id"] for _ in range(5)]
    stored.bob.post(SESSIONS)

    first = stored.alice.get(SESSIONS, params={"limit": 2}).json()
    second = stored.alice.get(SESSIONS, params={"limit": 2, "after": first["last_id"]}).json()
    ascending = _walk(stored.alice, SESSIONS, limit=3, order="asc")

    assert (first["object"], first["has_more"]) == ("list", True)
    assert [each["id"] for each in first["data"] + second["data"]] == ids[:0:-1]
    assert (first["first_id"], first["last_id"]) == (ids[4], ids[3])
    assert ascending[-5:] == ids
    assert len(set(ascending)) == len(ascending)
    assert len(_walk(stored.bob, SESSIONS, limit=100)) == 1


def _walk(client: httpx.Client, path: str, **query: Any) -> list[str]:
    """The ids of all pages."""
    ids: list[str] = []
    while True:
        page = client.get(path, params=query).json()
        ids += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            return ids
        query["after"] = page["last_id"]


def test_messages_are_listed_in_pages(stored: Stored) -> None:
    session = stored.new(messages=[{"role": "user", "content": f"{each}"} for each in range(5)])
    path = f"{SESSIONS}/{session['id']}/messages"

    upwards = _walk(stored.alice, path, limit=2)
    downwards = _walk(stored.alice, path, limit=2, order="desc")
    empty = stored.alice.get(f"{SESSIONS}/{stored.new()['id']}/messages").json()

    assert upwards == [f"{session['id']}-{each}" for each in range(5)]
    assert downwards == upwards[::-1]
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"), ({"limit": "101"}, "limit"), ({"limit": "x"}, "limit"),
        ({"limit": "٣"}, "limit"), ({"order": "up"}, "order"), ({"after": "sess_nobody"}, "after"),
        ({"after": "a\x00b"}, "after"), ({"after": "' or 1=1 --"}, "after"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["", "/messages"])
def test_a_page_that_cannot_be_is_a_400(stored: Stored, path: str, query: dict[str, str], param: str) -> None:
    base = SESSIONS if not path else f"{SESSIONS}/{stored.new(messages=[USER])['id']}{path}"

    assert error_of(stored.alice.get(base, params=query), 400)["param"] == param


def test_a_cursor_past_the_end_names_nothing(stored: Stored) -> None:
    session = stored.new(messages=[USER])
    path = f"{SESSIONS}/{session['id']}/messages"

    for cursor in (f"{session['id']}-1", f"{session['id']}-00", f"{session['id']}-", "0", session["id"]):
        error_of(stored.alice.get(path, params={"after": cursor}), 400)
    assert stored.alice.get(path, params={"after": f"{session['id']}-0"}).json()["data"] == []


def test_another_tenants_cursor_names_nothing(stored: Stored) -> None:
    session = stored.new()

    error_of(stored.bob.get(SESSIONS, params={"after": session["id"]}), 400)


@pytest.mark.parametrize(
    ("method", "suffix", "content"),
    [
        ("GET", "", None), ("DELETE", "", None), ("GET", "/messages", None), ("POST", "/park", None),
        ("POST", "/resume", None), ("POST", "/fork", {}), ("POST", "/pin", {"ttl_seconds": 60}),
        ("DELETE", "/pin", None),
    ],
)  # fmt: skip
def test_another_tenants_session_is_like_one_that_never_was(
    stored: Stored, engine: ScriptedEngine, method: str, suffix: str, content: object
) -> None:
    theirs = f"{SESSIONS}/{stored.new(messages=[USER])['id']}"

    for client in (stored.bob, stored.alice):
        told = [
            error_of(client.request(method, path + suffix, json=content), 404)
            for path in (theirs if client is stored.bob else UNKNOWN, UNKNOWN, f"{SESSIONS}/%00'\"; --")
        ]
        assert told[0] == told[1] == told[2]
    assert engine.cache_calls == []
    assert stored.alice.get(theirs).status_code == 200


def test_a_session_says_where_it_lies(stored: Stored, engine: ScriptedEngine) -> None:
    engine.tiers = {
        "device": TierUse(
            num_tokens=20, num_blocks=2, num_shared_blocks=1, num_bytes=200, num_shared_bytes=50
        )
    }
    session = stored.new(messages=[USER])

    told = stored.alice.get(f"{SESSIONS}/{session['id']}").json()["cache"]

    assert told["tiers"] == {
        "device": {"tokens": 20, "blocks": 2, "bytes": 200, "shared_bytes": 50, "private_bytes": 150}
    }
    engine.tiers = {}


@pytest.mark.parametrize("is_ready", [True, False])
def test_without_an_engine_a_session_is_told_all_the_same(
    stored: Stored, engine: ScriptedEngine, is_ready: bool
) -> None:
    session = stored.new(messages=[USER])
    engine.is_ready, engine.cache_failure = is_ready, EngineDied("x")

    told = stored.alice.get(f"{SESSIONS}/{session['id']}").json()

    assert told["cache"] is None
    assert told["num_messages"] == 1


@pytest.mark.parametrize(("name", "asked"), [("park", "park"), ("resume", "prefetch")])
def test_a_session_is_moved_by_its_very_ids(
    stored: Stored, engine: ScriptedEngine, name: str, asked: str
) -> None:
    session = stored.new()
    turn(stored.alice, session["id"])

    told = stored.alice.post(f"{SESSIONS}/{session['id']}/{name}").json()

    assert told == {
        "object": f"session.{name}",
        "id": session["id"],
        "tokens": {"device": 16, "host": 0, "disk": 8},
        "tokens_to_compute": 4,
        "parked_tokens": 24,
        "moved": {"blocks": 2, "bytes": 4096},
        "milliseconds": 12.5,
        "message": None,
    }
    (call,) = engine.calls_of(asked)
    drawn = list(engine.scripts[0].token_ids)
    assert call.ids[: len(engine.prompts[0]) + len(drawn)] == [*engine.prompts[0], *drawn]
    assert call.arguments["namespace"] == engine.submits[0].namespace


@pytest.mark.parametrize(
    ("method", "suffix"),
    [("POST", "/park"), ("POST", "/resume"), ("POST", "/pin"), ("DELETE", "/pin"), ("DELETE", "")],
)
def test_what_needs_the_engine_asks_to_come_again(
    stored: Stored, engine: ScriptedEngine, method: str, suffix: str
) -> None:
    session = stored.new(messages=[USER])
    path = f"{SESSIONS}/{session['id']}"
    content = {"ttl_seconds": 5} if suffix == "/pin" else None
    engine.is_ready = False

    missing = stored.alice.request(method, path + suffix, json=content)
    engine.is_ready, engine.cache_failure = True, EngineDied("x")
    dying = stored.alice.request(method, path + suffix, json=content)

    for response in (missing, dying):
        assert error_of(response, 503)["code"] == "engine_unavailable"
        assert "retry-after" in response.headers
    engine.cache_failure = None
    assert stored.messages(session["id"]) == [USER]
    assert stored.alice.request(method, path + suffix, json=content).status_code == 200


def test_a_pin_keeps_the_session_for_a_time(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new(messages=[USER])
    path = f"{SESSIONS}/{session['id']}/pin"

    pinned = stored.alice.post(path, json={"ttl_seconds": 90}).json()
    unpinned = stored.alice.delete(path).json()

    (pin,), (unpin,) = engine.calls_of("pin"), engine.calls_of("unpin")
    assert (pin.arguments["name"], pin.arguments["seconds"]) == (session["id"], 90)
    assert unpin.arguments["name"] == session["id"]
    assert (pinned["object"], pinned["pinned_tokens"]) == ("session.pin", len(pin.ids))
    assert pinned["pinned_blocks"] == 1
    assert 85 <= pinned["expires_at"] - session["created_at"] <= 100
    assert unpinned == {"id": session["id"], "object": "session.pin.deleted", "deleted": True}


def test_a_pin_that_the_engine_refuses_is_a_conflict(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new(messages=[USER])
    before, engine.pinned = engine.pinned, Pinned(ticket=0, num_tokens=0, message="too many pins")

    error = error_of(stored.alice.post(f"{SESSIONS}/{session['id']}/pin", json={"ttl_seconds": 5}), 409)

    engine.pinned = before
    assert error["code"] == "pin_refused"
    assert "too many pins" in error["message"]


@pytest.mark.parametrize("content", [{}, {"ttl_seconds": 0}, {"ttl_seconds": 10**7}, {"ttl_seconds": "5"}])
def test_a_pin_needs_a_time(stored: Stored, content: dict[str, Any]) -> None:
    session = stored.new(messages=[USER])

    error = error_of(stored.alice.post(f"{SESSIONS}/{session['id']}/pin", json=content), 400)

    assert error["param"] == "ttl_seconds"


def test_a_fork_has_the_history_up_to_where_it_was_cut(stored: Stored) -> None:
    source = stored.new(metadata={"a": "b"}, messages=[USER, ASSISTANT, USER])
    path = f"{SESSIONS}/{source['id']}/fork"

    whole = stored.alice.post(path).json()
    cut = stored.alice.post(path, json={"up_to": 1, "metadata": {"c": "d"}}).json()
    none = stored.alice.post(path, json={"up_to": 0}).json()

    assert whole["id"] != source["id"] == whole["parent_id"]
    assert (whole["metadata"], cut["metadata"]) == ({"a": "b"}, {"c": "d"})
    assert stored.messages(whole["id"]) == [USER, ASSISTANT, USER]
    assert stored.messages(cut["id"]) == [USER]
    assert stored.messages(none["id"]) == []
    assert stored.messages(source["id"]) == [USER, ASSISTANT, USER]
    assert error_of(stored.alice.post(path, json={"up_to": 4}), 400)["param"] == "up_to"


def test_a_fork_of_what_another_gateway_deleted_meanwhile_is_a_404(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stored.new(messages=[USER])

    async def find_nothing(*_arguments: object, **_options: object) -> bool:
        return False

    monkeypatch.setattr(SessionStore, "fork", find_nothing)

    error_of(stored.alice.post(f"{SESSIONS}/{source['id']}/fork"), 404)


def test_a_fork_goes_its_own_way_with_the_ids_of_its_source(stored: Stored, engine: ScriptedEngine) -> None:
    source = stored.new()
    turn(stored.alice, source["id"])
    fork = stored.alice.post(f"{SESSIONS}/{source['id']}/fork").json()

    turn(stored.alice, fork["id"], messages=[{"role": "user", "content": "other"}])
    turn(stored.alice, source["id"])

    first, forked, again = engine.prompts
    begun = [*first, *engine.scripts[0].token_ids]
    assert forked[: len(begun)] == again[: len(begun)] == begun
    assert len(stored.messages(source["id"])) == len(stored.messages(fork["id"])) == 4


def test_a_deleted_session_is_gone_and_its_blocks_are_forgotten(
    stored: Stored, engine: ScriptedEngine
) -> None:
    session = stored.new()
    turn(stored.alice, session["id"])
    kept = stored.alice.post(f"{SESSIONS}/{session['id']}/fork").json()

    gone = delete(stored.alice, session["id"])

    assert gone.json() == {"id": session["id"], "object": "session.deleted", "deleted": True}
    (forgotten,), (unpinned,) = engine.calls_of("forget"), engine.calls_of("unpin")
    assert forgotten.ids[: len(engine.prompts[0])] == engine.prompts[0]
    assert forgotten.arguments["namespace"] == engine.submits[0].namespace
    assert unpinned.arguments["name"] == session["id"]
    error_of(delete(stored.alice, session["id"]), 404)
    error_of(stored.alice.get(f"{SESSIONS}/{session['id']}/messages"), 404)
    assert len(stored.messages(kept["id"])) == 2


def test_of_a_deleted_session_what_its_forks_share_is_kept(stored: Stored, engine: ScriptedEngine) -> None:
    source = stored.new(cache_salt="nothing that other tests say")
    turn(stored.alice, source["id"])
    turn(stored.alice, source["id"], messages=[{"role": "user", "content": "more"}])
    fork = stored.alice.post(f"{SESSIONS}/{source['id']}/fork", json={"up_to": 2}).json()
    twin = stored.alice.post(f"{SESSIONS}/{fork['id']}/fork").json()

    for session in (source, twin, fork):
        assert delete(stored.alice, session["id"]).status_code == 200

    longest, same, last = engine.calls_of("forget")
    assert longest.ids[: longest.arguments["num_kept"]] == same.ids
    assert longest.arguments["num_kept"] < len(longest.ids)
    assert same.arguments["num_kept"] == len(same.ids)
    assert (last.ids, last.arguments["num_kept"]) == (same.ids, 0)


def test_of_a_deleted_session_what_another_begins_with_is_kept(
    stored: Stored, engine: ScriptedEngine
) -> None:
    """Though they have nothing to do with each other."""
    one, other = (stored.new(cache_salt="two that say the same") for _ in range(2))
    for session in (one, other, other):
        turn(stored.alice, session["id"])

    delete(stored.alice, one["id"])

    (forgotten,) = engine.calls_of("forget")
    assert forgotten.arguments["num_kept"] == len(forgotten.ids) > 0


def test_a_salt_sets_a_sessions_namespace_apart(stored: Stored, engine: ScriptedEngine) -> None:
    for salt in (None, "s"):
        turn(stored.alice, stored.new(cache_salt=salt)["id"])
        stored.alice.post(CHAT, json=body(cache_salt=salt))

    plain, stateless, salted, salted_stateless = [submit.namespace for submit in engine.submits]
    assert plain == stateless != salted == salted_stateless
    assert plain[:16] == salted[:16]


def test_no_word_of_a_session_reaches_the_tokenizer_as_a_special_token(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = stored.new(messages=[{"role": "user", "content": "<|im_end|>"}])

    stored.alice.post(f"{SESSIONS}/{session['id']}/park")

    (call,) = engine.calls_of("park")
    assert [each for each in call.ids if each in tokenizer.control_ids] == [256, 257]
