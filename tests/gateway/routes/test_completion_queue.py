"""Several prompts of one request are as many requests to the engine, and only so many may wait there."""

import httpx
import pytest

from gateway.conversation.prompt import Prompts
from gateway.settings import EngineSettings, Settings
from tests.fakes import ScriptedEngine
from tests.live import live_server, scripted_services


@pytest.mark.parametrize(("num_prompts", "status"), [(4, 200), (5, 400)])
def test_more_prompts_than_may_wait_are_refused_for_good(
    engine: ScriptedEngine, prompts: Prompts, num_prompts: int, status: int
) -> None:
    """Sent again they would be refused again, so that is no matter of time."""
    settings = Settings(engine=EngineSettings(max_waiting=4))
    body = {"model": "scripted", "prompt": ["x"] * num_prompts, "max_tokens": 2}
    with live_server(scripted_services(engine, prompts), settings) as server:
        response = httpx.post(f"{server.url}/v1/completions", json=body)

    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["param"] == "prompt"
        assert "only 4 may wait" in response.json()["error"]["message"]
        assert engine.submits == []
