"""A client that stops reading is let go, and what its stream held is free for others."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.routes.test_session_turns import wait_until
from tests.gateway.stored import ALICE, Stored, fresh_prompts, stored_server
from tests.gateway.talk import CHAT, body, chat


@pytest.fixture
def impatient(engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path) -> Iterator[Stored]:
    """A server that waits a fifth of a second for who does not read."""
    server = {"send_timeout_seconds": 0.2}
    with stored_server(engine, fresh_prompts(tokenizer), tmp_path / "x.sqlite3", server=server) as stored:
        yield stored


def test_a_client_that_stops_reading_keeps_neither_its_request_nor_its_session(
    impatient: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = impatient.new()
    engine.scripts = [Script([tokenizer.id_of("x" * 4000)] * 4000)]
    content = json.dumps(body(stream=True, session_id=session["id"])).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\n"
    url = impatient.alice.base_url

    with socket.create_connection((url.host, url.port)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: engine.num_running == 1)
        wait_until(lambda: engine.num_running == 0)
        engine.scripts = [Script([tokenizer.id_of("x")])]
        again = chat(impatient.alice, session_id=session["id"])

    assert again.status_code == 200
    assert len(impatient.messages(session["id"])) == 2
