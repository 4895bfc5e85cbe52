"""Sessions and the database: many at once, a database that another process holds, strings of every kind."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.stored import SESSIONS, Stored, fresh_prompts, stored_server
from tests.gateway.talk import chat, error_of

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "Hello, world"}


@pytest.fixture
def engine() -> ScriptedEngine:
    tokenizer = ByteTokenizer()
    return ScriptedEngine([Script([tokenizer.id_of(text) for text in ("Hello", ", ", "world")])])


@pytest.fixture
def stored(engine: ScriptedEngine, tmp_path: Path) -> Iterator[Stored]:
    tokenizer = ByteTokenizer()
    for text in ("Hello", ", ", "world"):
        tokenizer.id_of(text)
    with stored_server(engine, fresh_prompts(tokenizer), tmp_path / "stemma.sqlite3") as server:
        yield server


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_so()


def another_process(stored: Stored) -> sqlite3.Connection:
    """A connection that holds the database for itself until it is closed."""
    connection = sqlite3.connect(str(stored.services.database.url.database), isolation_level=None)
    connection.execute("begin immediate")
    return connection


def test_fifty_sessions_written_at_once_while_they_are_listed_are_all_stored(stored: Stored) -> None:
    sessions = [stored.new()["id"] for _ in range(50)]

    with ThreadPoolExecutor(60) as threads:
        turns = [threads.submit(chat, stored.alice, session_id=session) for session in sessions]
        lists = [threads.submit(stored.alice.get, SESSIONS) for _ in range(20)]
        answers = [each.result() for each in (*turns, *lists)]

    assert {answer.status_code for answer in answers} == {200}
    assert all(stored.messages(session) == [USER, ANSWER] for session in sessions)


def test_a_turn_waits_for_a_database_that_another_process_holds(
    stored: Stored, engine: ScriptedEngine
) -> None:
    session = stored.new()["id"]
    statuses: list[int] = []
    asking = threading.Thread(
        target=lambda: statuses.append(chat(stored.alice, session_id=session).status_code)
    )

    with closing(another_process(stored)):
        asking.start()
        wait_until(lambda: bool(engine.submits) and engine.num_running == 0)
        assert stored.messages(session) == []
        assert asking.is_alive()
    asking.join()

    assert statuses == [200]
    assert stored.messages(session) == [USER, ANSWER]


def test_a_turn_for_which_the_database_does_not_come_free_is_a_503_and_leaves_nothing(stored: Stored) -> None:
    session = stored.new()["id"]

    with closing(another_process(stored)):
        refused = chat(stored.alice, session_id=session)

    assert error_of(refused, 503)["code"] == "store_unavailable"
    assert stored.messages(session) == []
    assert chat(stored.alice, session_id=session).status_code == 200
    assert stored.messages(session) == [USER, ANSWER]


@pytest.mark.parametrize(
    "text", ["x' OR '1'='1", "%", "_", "a\\", "'; DROP TABLE sessions;--", "a') OR 1=1 --", "..", "😀", "\0"]
)
def test_strings_that_mean_something_in_sql_are_strings(stored: Stored, text: str) -> None:
    other = stored.new()
    session = stored.new(metadata={text: text}, messages=[{"role": "user", "content": text}])

    told = stored.alice.get(f"{SESSIONS}/{session['id']}").json()

    assert told["metadata"] == {text: text}
    assert stored.messages(session["id"]) == [{"role": "user", "content": text}]
    error_of(stored.alice.get(SESSIONS, params={"after": text}), 400)
    assert stored.alice.delete(f"{SESSIONS}/{session['id']}").status_code == 200
    assert [each["id"] for each in stored.alice.get(SESSIONS).json()["data"]] == [other["id"]]
