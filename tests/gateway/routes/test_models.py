"""GET /v1/models: the names that answer."""

import httpx
import pytest

from tests.fakes import ScriptedEngine
from tests.gateway.talk import error_of


def test_every_name_is_listed_once(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["scripted", "gpt-4o"]
    assert all(model["object"] == "model" and model["owned_by"] for model in listed["data"])


@pytest.mark.parametrize("name", ["scripted", "gpt-4o"])
def test_each_name_can_be_asked_for(client: httpx.Client, name: str) -> None:
    model = client.get(f"/v1/models/{name}").json()

    assert (model["id"], model["max_model_len"]) == (name, 4096)


@pytest.mark.parametrize("name", ["nobody", "a/b", "%00", "é"])
def test_an_unknown_name_is_a_404(client: httpx.Client, name: str) -> None:
    assert error_of(client.get(f"/v1/models/{name}"), 404)["code"] == "model_not_found"


def test_names_are_known_before_the_model_is_ready(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.is_ready = False

    assert client.get("/v1/models/scripted").json()["max_model_len"] is None
