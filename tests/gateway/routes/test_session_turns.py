"""POST /v1/chat/completions with a session: what is continued, what is kept, and what leaves no trace."""

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from engine.errors import EngineDied
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.stored import SESSIONS, Stored, fresh_prompts, stored_server
from tests.gateway.talk import CHAT, body, chat, content_of, error_of, events_of, finish_of, stream

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "Hello, world"}


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_so()


def change(stored: Stored, statement: str, *values: object) -> None:
    """What another gateway, or an operator, does to the database."""
    path = stored.services.database.url.database
    assert path is not None
    connection = sqlite3.connect(path)
    try:
        connection.execute(statement, values)
        connection.commit()
    finally:
        connection.close()


def test_a_turn_is_the_history_and_what_is_new(stored: Stored, engine: ScriptedEngine) -> None:
    system = {"role": "system", "content": "Be brief."}
    session = stored.new(messages=[system])

    for said in ("one", "two"):
        assert chat(stored.alice, session_id=session["id"], messages=user(said)).status_code == 200

    first, second = engine.prompts
    drawn = list(engine.scripts[0].token_ids)
    assert bytes(each for each in first if each < 256) == b"system\nBe brief.\nuser\none\nassistant\n"
    assert second[: len(first) + len(drawn)] == [*first, *drawn]
    assert stored.messages(session["id"]) == [system, *user("one"), ANSWER, *user("two"), ANSWER]
    told = stored.alice.get(f"{SESSIONS}/{session['id']}").json()
    assert (told["num_turns"], told["num_messages"]) == (2, 5)


def test_a_turn_may_be_parked_on_the_disk_and_others_may_not(stored: Stored, engine: ScriptedEngine) -> None:
    chat(stored.alice, session_id=stored.new()["id"])
    chat(stored.alice)

    assert [submit.persists for submit in engine.submits] == [True, False]


def test_a_turn_is_in_the_database_before_the_client_hears_of_its_end(
    stored: Stored, engine: ScriptedEngine
) -> None:
    session = stored.new()
    path = stored.services.database.url.database
    assert path is not None

    with stored.alice.stream("POST", CHAT, json=body(stream=True, session_id=session["id"])) as response:
        ends = (line for line in response.iter_lines() if '"finish_reason":"stop"' in line)
        next(ends)
        connection = sqlite3.connect(path)
        rows = connection.execute(
            "select count(*) from session_messages where session_id = ?", [session["id"]]
        ).fetchone()
        connection.close()

    assert rows == (2,)


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_that_a_limit_cut_is_kept(stored: Stored, streamed: bool) -> None:
    session = stored.new()

    chat(stored.alice, session_id=session["id"], max_tokens=1, stream=streamed)

    assert stored.messages(session["id"]) == [USER, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_turn_that_failed_leaves_nothing(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer, streamed: bool
) -> None:
    session = stored.new(messages=[USER])
    engine.scripts = [Script([tokenizer.id_of("x")] * 9, fail_after=2)]
    engine.failure = EngineDied("x")

    chat(stored.alice, session_id=session["id"], stream=streamed)

    assert stored.messages(session["id"]) == [USER]
    engine.scripts = [Script([tokenizer.id_of("x")])]
    assert chat(stored.alice, session_id=session["id"]).status_code == 200


def test_a_turn_whose_client_left_leaves_nothing_and_lets_the_next_one_in(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = stored.new()
    engine.scripts = [Script([tokenizer.id_of("x")] * 3000)]
    engine.step_seconds = 0.005

    with stored.alice.stream("POST", CHAT, json=body(stream=True, session_id=session["id"])) as response:
        next(response.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        stored.alice.post(CHAT, json=body(session_id=session["id"]), timeout=httpx.Timeout(5, read=0.2))

    wait_until(lambda: engine.num_running == 0)
    assert stored.messages(session["id"]) == []
    engine.scripts, engine.step_seconds = [Script([tokenizer.id_of("x")])], 0.0
    assert chat(stored.alice, session_id=session["id"]).status_code == 200


@pytest.mark.parametrize("streamed", [True, False])
def test_a_turn_that_cannot_be_stored_is_an_error(stored: Stored, streamed: bool) -> None:
    session = stored.new()
    change(stored, "create trigger full before insert on session_messages begin select raise(fail, 'x'); end")

    with capture_logs() as lines:
        response = chat(stored.alice, session_id=session["id"], stream=streamed)
        wait_until(lambda: any(line["event"] == "request.finished" for line in lines))

    change(stored, "drop trigger full")
    (finished,) = [line for line in lines if line["event"] == "request.finished"]
    assert finished["outcome"] == "failed"
    if streamed:
        *chunks, last = events_of(response.text)
        assert last["error"]["code"] == "internal_error"
        assert finish_of(chunks) == []
    else:
        assert error_of(response, 500)["code"] == "internal_error"
    assert stored.messages(session["id"]) == []
    assert any(line["event"] == "session.not_stored" for line in lines)
    assert stored.alice.get(f"{SESSIONS}/{session['id']}").json()["num_turns"] == 0


@pytest.mark.parametrize("streamed", [True, False])
def test_a_turn_that_another_gateway_overtook_is_a_conflict(
    stored: Stored, engine: ScriptedEngine, streamed: bool
) -> None:
    session = stored.new()
    engine.step_seconds = 0.1
    answers: list[httpx.Response] = []
    ask = {"session_id": session["id"], "stream": streamed}
    asking = threading.Thread(target=lambda: answers.append(chat(stored.alice, **ask)))

    asking.start()
    wait_until(lambda: engine.num_running == 1)
    change(stored, "update sessions set num_turns = num_turns + 1 where id = ?", session["id"])
    asking.join()

    if streamed:
        *chunks, last = events_of(answers[0].text)
        assert last["error"]["code"] == "session_conflict"
        assert finish_of(chunks) == []
    else:
        assert error_of(answers[0], 409)["code"] == "session_conflict"
    assert stored.messages(session["id"]) == []


def test_the_second_of_two_turns_at_once_continues_the_first(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new()
    engine.step_seconds = 0.02
    ask = {"session_id": session["id"]}
    asking = [
        threading.Thread(target=lambda said=said: chat(stored.alice, messages=user(said), **ask))
        for said in ("one", "two")
    ]

    asking[0].start()
    wait_until(lambda: engine.num_running == 1)
    asking[1].start()
    for each in asking:
        each.join()

    assert stored.messages(session["id"]) == [*user("one"), ANSWER, *user("two"), ANSWER]
    first, second = engine.prompts
    assert second[: len(first)] == first


@pytest.mark.parametrize(
    ("method", "suffix"), [("POST", "/park"), ("POST", "/fork"), ("DELETE", ""), ("POST", "turn")]
)
def test_who_waits_too_long_for_a_turn_is_told_so(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer, method: str, suffix: str
) -> None:
    session = stored.new()
    engine.scripts = [Script([tokenizer.id_of("x")] * 3000)]
    engine.step_seconds = 0.01

    with stored.alice.stream("POST", CHAT, json=body(stream=True, session_id=session["id"])) as response:
        lines = response.iter_lines()  # kept: a reader that is let go closes the connection
        next(lines)
        if suffix == "turn":
            busy = chat(stored.alice, session_id=session["id"])
        else:
            busy = stored.alice.request(method, f"{SESSIONS}/{session['id']}{suffix}")

    assert error_of(busy, 409)["code"] == "session_busy"
    wait_until(lambda: engine.num_running == 0)
    assert stored.alice.delete(f"{SESSIONS}/{session['id']}").status_code == 200


def test_after_a_restart_the_prompt_has_the_ids_that_were_read_and_written(
    engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "stemma.sqlite3"
    with stored_server(engine, fresh_prompts(tokenizer), path) as stored:
        session = stored.new(messages=[{"role": "system", "content": "s"}])
        for said in ("one", "two"):
            chat(stored.alice, session_id=session["id"], messages=user(said))
        stored.alice.post(f"{SESSIONS}/{session['id']}/park")
        history = stored.messages(session["id"])
    drawn = list(engine.scripts[0].token_ids)
    begun = [*engine.prompts[1], *drawn]

    with stored_server(engine, fresh_prompts(tokenizer), path) as stored:
        stored.alice.post(f"{SESSIONS}/{session['id']}/park")
        chat(stored.alice, session_id=session["id"], messages=user("three"))
    with stored_server(engine, fresh_prompts(tokenizer), path) as stored:
        chat(stored.alice, messages=[*history, *user("three")])

    before, after = engine.calls_of("park")
    continued, tokenized_anew = engine.prompts[2:]
    assert after.ids == before.ids
    assert continued[: len(begun)] == begun
    assert tokenized_anew[: len(begun)] != begun


def test_what_another_gateway_added_is_continued_with_its_ids(
    engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "stemma.sqlite3"
    with (
        stored_server(engine, fresh_prompts(tokenizer), path) as one,
        stored_server(engine, fresh_prompts(tokenizer), path) as other,
    ):
        session = one.new()
        for server in (one, other, one):
            assert chat(server.alice, session_id=session["id"]).status_code == 200

    first, second, third = engine.prompts
    drawn = list(engine.scripts[0].token_ids)
    assert second[: len(first) + len(drawn)] == [*first, *drawn]
    assert third[: len(second) + len(drawn)] == [*second, *drawn]


def test_a_streamed_turn_is_an_ordinary_stream(stored: Stored) -> None:
    events = stream(stored.alice, session_id=stored.new()["id"], stream_options={"include_usage": True})

    assert (content_of(events), finish_of(events), events[-1]) == ("Hello, world", ["stop"], "[DONE]")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"), ({"cache": "read-only"}, "cache"), ({"cache": {"mode": "read-only"}}, "cache"),
        ({"cache_salt": "s"}, "cache_salt"), ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": [USER, ANSWER], "continue_final_message": True}, "continue_final_message"),
        ({"messages": []}, "messages"), ({"session_id": 5}, "session_id"),
        ({"max_tokens": 5000}, "max_tokens"),
    ],
)  # fmt: skip
def test_what_a_session_cannot_keep_is_refused_by_name(
    stored: Stored, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    session = stored.new()

    error = error_of(chat(stored.alice, **({"session_id": session["id"]} | fields)), 400)

    assert error["param"] == param
    assert engine.submits == []
    assert chat(stored.alice, session_id=session["id"], store=False).status_code == 200


def test_a_session_of_nobody_and_of_somebody_else_are_the_same_404(stored: Stored) -> None:
    session = stored.new()

    told = [
        error_of(chat(client, session_id=session_id), 404)
        for client, session_id in (
            (stored.bob, session["id"]),
            (stored.alice, f"sess_{'0' * 24}"),
            (stored.alice, "a\u0000'; --"),
        )
    ]

    assert told[0] == told[1] == told[2]


def test_only_what_could_be_an_id_is_looked_up(stored: Stored) -> None:
    session = stored.new()
    change(stored, "update sessions set id = 'odd' where id = ?", session["id"])

    error_of(stored.alice.get(f"{SESSIONS}/odd"), 404)
    change(stored, "delete from sessions where id = 'odd'")


def test_a_session_of_another_model_is_not_continued(stored: Stored) -> None:
    session = stored.new()
    change(stored, "update sessions set model = 'older' where id = ?", session["id"])

    # twice: whoever is refused does not keep the others waiting
    for _ in range(2):
        error = error_of(chat(stored.alice, session_id=session["id"]), 400)
        assert (error["param"], error["code"]) == ("model", "model_mismatch")


def test_a_history_that_has_become_too_long_is_refused_and_kept(stored: Stored) -> None:
    session = stored.new(messages=user("word " * 800))

    error = error_of(chat(stored.alice, session_id=session["id"], messages=user("word " * 100)), 400)

    assert error["code"] == "context_length_exceeded"
    assert len(stored.messages(session["id"])) == 1


def test_no_word_of_a_session_is_logged(stored: Stored, engine: ScriptedEngine) -> None:
    with capture_logs() as lines:
        session = stored.new(messages=user("CANARY-1"), metadata={"CANARY-2": "CANARY-3"})
        chat(stored.alice, session_id=session["id"], messages=user("CANARY-4"))
        change(stored, "update sessions set num_turns = 7 where id = ?", session["id"])
        stored.alice.post(f"{SESSIONS}/{session['id']}/fork", json={"metadata": {"CANARY": "CANARY"}})
        wait_until(lambda: len(lines) >= 3)

    assert "CANARY" not in repr(lines)


def test_a_database_that_does_not_answer_is_a_503(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new()
    change(stored, "alter table sessions rename to hidden")

    refused = [
        stored.alice.get(SESSIONS),
        stored.alice.post(SESSIONS),
        chat(stored.alice, session_id=session["id"]),
    ]

    change(stored, "alter table hidden rename to sessions")
    for response in refused:
        assert error_of(response, 503)["code"] == "store_unavailable"
        assert "retry-after" in response.headers
    assert engine.submits == []
    assert chat(stored.alice, session_id=session["id"]).status_code == 200


def test_stored_turns_are_counted(stored: Stored) -> None:
    counter = stored.services.metrics.session_turns
    before = counter._value.get()

    chat(stored.alice, session_id=stored.new()["id"])
    chat(stored.alice)

    assert counter._value.get() == before + 1
