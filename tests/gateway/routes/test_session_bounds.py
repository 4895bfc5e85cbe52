"""How much may be stored, told and asked for: what is too much is refused by name, and costs nobody else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.conversation.prompt import Prompts
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.stored import SESSIONS, Stored, fresh_prompts, stored_server
from tests.gateway.talk import CHAT, body, chat, error_of


class Counting(ByteTokenizer):
    """Counts what it is asked to tokenize."""

    num_characters = 0

    def encode(self, text: str) -> list[int]:
        self.num_characters += len(text)
        return super().encode(text)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def bounded(engine: ScriptedEngine, counting: Counting, tmp_path: Path) -> Iterator[Stored]:
    """A server where two sessions of 20,000 bytes are the most."""
    engine.scripts = [Script([counting.id_of("Hello")])]
    limits = {"max_session_bytes": 20_000, "max_sessions": 2}
    with stored_server(engine, fresh_prompts(counting), tmp_path / "x.sqlite3", limits) as stored:
        yield stored


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_session_has_a_greatest_size(bounded: Stored, engine: ScriptedEngine) -> None:
    made = bounded.alice.post(SESSIONS, json={"messages": user("x" * 20_000)})
    session = bounded.new(messages=user("x" * 3000))
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "é" * 3000}}]}
    turn = chat(bounded.alice, session_id=session["id"], messages=[call, *user("x")])

    for refused in (made, turn):
        error = error_of(refused, 400)
        assert error["param"] == "messages"
        assert "max_session_bytes" in error["message"]
        assert "new session" in error["message"]
    assert engine.submits == []
    assert chat(bounded.alice, session_id=session["id"]).status_code == 200


def test_what_nobody_reads_does_not_count(bounded: Stored) -> None:
    padded = {
        "role": "user",
        "content": [{"type": "text", "text": "hi", "pad": "x" * 30_000}],
        "pad": "x" * 30_000,
    }

    session = bounded.new(messages=[padded])

    assert bounded.messages(session["id"]) == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def test_a_tenant_has_so_many_sessions(bounded: Stored) -> None:
    first = bounded.new()
    bounded.new()

    made = bounded.alice.post(SESSIONS)
    forked = bounded.alice.post(f"{SESSIONS}/{first['id']}/fork")

    for refused in (made, forked):
        error = error_of(refused, 409)
        assert error["code"] == "too_many_sessions"
        assert "max_sessions" in error["message"]
    assert bounded.bob.post(SESSIONS).status_code == 200
    bounded.alice.delete(f"{SESSIONS}/{first['id']}")
    assert bounded.alice.post(SESSIONS).status_code == 200


def test_a_page_of_messages_ends_before_it_is_too_large(stored: Stored) -> None:
    session = stored.new(messages=user("x" * 400_000) * 2 + user("x" * 1_500_000) + user("x"))
    path = f"{SESSIONS}/{session['id']}/messages"

    pages: list[dict[str, Any]] = []
    after = None
    while len(pages) < 5 and (not pages or pages[-1]["has_more"]):
        pages.append(
            stored.alice.get(path, params={"limit": 100} | ({"after": after} if after else {})).json()
        )
        after = pages[-1]["last_id"]

    assert [[each["position"] for each in page["data"]] for page in pages] == [[0, 1], [2], [3]]


def test_what_can_never_be_a_prompt_is_not_tokenized(
    bounded: Stored, engine: ScriptedEngine, counting: Counting
) -> None:
    path = f"{SESSIONS}/{bounded.new(messages=user('x' * 4300) * 4)['id']}"
    before, engine.info = engine.info, replace(engine.info, context_length=64)
    counting.num_characters = 0

    told = bounded.alice.get(path).json()
    refused = [
        bounded.alice.post(f"{path}/{action}", json=content)
        for action, content in (("park", None), ("resume", None), ("pin", {"ttl_seconds": 5}))
    ]
    gone = bounded.alice.delete(path)

    engine.info = before
    assert told["cache"] is None
    for response in refused:
        assert error_of(response, 400)["code"] == "context_length_exceeded"
    assert gone.status_code == 200
    assert counting.num_characters == 0


def test_of_a_session_that_has_become_too_long_a_beginning_is_forgotten(
    bounded: Stored, engine: ScriptedEngine, counting: Counting
) -> None:
    session = bounded.new(messages=user("a") + user("x" * 190) * 20)
    chat(bounded.alice, session_id=session["id"])
    before, engine.info = engine.info, replace(engine.info, context_length=64)
    counting.num_characters = 0

    gone = bounded.alice.delete(f"{SESSIONS}/{session['id']}")

    engine.info = before
    (call,) = engine.calls_of("forget")
    assert gone.status_code == 200
    assert call.ids == engine.prompts[0][: len(call.ids)]
    assert len(call.ids) == 64
    assert counting.num_characters < 300


def test_the_engine_is_never_asked_about_more_than_its_longest_request(
    bounded: Stored, engine: ScriptedEngine
) -> None:
    session = bounded.new(messages=user("x" * 6000))

    for action in ("park", "resume"):
        assert bounded.alice.post(f"{SESSIONS}/{session['id']}/{action}").status_code == 200

    for call in (*engine.calls_of("park"), *engine.calls_of("prefetch")):
        assert len(call.ids) == engine.info.max_request_tokens


def test_arguments_of_tool_calls_and_empty_messages_count_as_length(
    bounded: Stored, counting: Counting, engine: ScriptedEngine
) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x" * 500_000}}]}
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    nested = {"role": "assistant", "tool_calls": [{"function": deep}]}
    counting.num_characters = 0

    refused = [
        chat(bounded.alice, messages=[call]),
        bounded.alice.post(CHAT, json=body(messages=[{"role": "user", "content": ""}] * 4096)),
    ]

    for response in refused:
        assert error_of(response, 400)["code"] == "context_length_exceeded"
    assert counting.num_characters == 0
    assert chat(bounded.alice, messages=[nested]).status_code in (200, 400)


def test_a_full_session_says_how_long_it_is_and_what_to_do(bounded: Stored) -> None:
    session = bounded.new(messages=user("x" * 4050))

    error = error_of(chat(bounded.alice, session_id=session["id"], messages=user("y" * 100)), 400)

    assert error["code"] == "context_length_exceeded"
    assert f"{len('user') + 4050 + 4:,} tokens" in error["message"]
    assert "up_to" in error["message"]


def test_ids_of_answers_are_those_of_the_rows_whatever_others_say(
    engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path
) -> None:
    prompts: Prompts = fresh_prompts(tokenizer)
    with stored_server(engine, prompts, tmp_path / "x.sqlite3") as stored:
        session = stored.new()
        for _ in range(2):
            chat(stored.alice, session_id=session["id"])
        for each in range(90):
            chat(stored.bob, messages=user(f"{each}" + "x" * 3900))
        chat(stored.alice, session_id=session["id"])

    second, third = engine.prompts[1], engine.prompts[-1]
    begun = [*second, *engine.scripts[0].token_ids]
    assert third[: len(begun)] == begun
