"""A session whose turn the engine does not take: nothing is stored, and the session is free."""

import pytest

from engine.errors import EngineError, QueueFull, WaitedTooLong
from tests.fakes import ScriptedEngine
from tests.gateway.stored import Stored
from tests.gateway.talk import body, error_of


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("refusal", "status"), [(QueueFull("full", 1.0), 429), (WaitedTooLong("late", 1.0), 503)]
)
def test_a_turn_that_is_not_taken_may_be_sent_again(
    stored: Stored, engine: ScriptedEngine, refusal: EngineError, status: int, streamed: bool
) -> None:
    session = stored.new()["id"]
    turn = body(session_id=session, stream=streamed)
    engine.refusal = refusal

    error_of(stored.alice.post("/v1/chat/completions", json=turn), status)

    assert stored.messages(session) == []
    engine.refusal = None
    assert stored.alice.post("/v1/chat/completions", json=turn).status_code == 200
    assert [message["role"] for message in stored.messages(session)] == ["user", "assistant"]
