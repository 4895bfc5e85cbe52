"""docs/api.md names what the code refuses and accepts, and its examples work as they are shown."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.cache_messages import CacheReport, NodePage, NodeView, TierUse
from gateway.wire.chat_request import ChatRequest
from gateway.wire.completion_request import CompletionRequest
from gateway.wire.unserved import CHAT_HINTS, COMPLETION_HINTS
from tests.fakes import ByteTokenizer, ScriptedEngine
from tests.gateway.stored import fresh_prompts, stored_server

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(http|json)\n(.*?)\n```", re.DOTALL)
PATH = re.compile(r"(?<![\w.])/[\w/{}-]*(?:\.json)?")
NODE = NodeView(
    serial=7, parent=0, start=0, num_tokens=40, num_blocks=3, num_children=2, num_locks=0, num_pins=0,
    num_uses=5, priority=0, namespace="2b", age_seconds=60.5, idle_seconds=3.2,
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *CHAT_HINTS, *COMPLETION_HINTS}),
)
def test_every_known_field_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE or f"`{name}." in PAGE


def test_every_path_is_on_the_page(client: httpx.Client) -> None:
    paths = {endpoint.split(" ")[1] for endpoint in client.get("/").json()["endpoints"]}

    named = {path.replace("{session}", "{id}").replace("{prefix}", "{id}") for path in PATH.findall(PAGE)}

    assert paths - named == set()


def test_the_examples_of_the_page_work_and_answer_as_shown(
    engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path
) -> None:
    """They are run in order: an example may use the session and the prefix that one before it made."""
    use = TierUse(num_tokens=40, num_blocks=3, num_shared_blocks=1, num_bytes=9, num_shared_bytes=3)
    engine.tiers, engine.page = {"device": use}, NodePage(ticket=0, nodes=[NODE], next=7)
    engine.report = CacheReport(num_device_tokens=5, num_computed_tokens=9, parted_at=5, reason="new")
    made: dict[str, str] = {}
    answer: Any = None
    num_shown = 0

    with stored_server(engine, fresh_prompts(tokenizer), tmp_path / "stemma.sqlite3") as stored:
        for kind, text in BLOCK.findall(PAGE):
            if kind == "http":
                answer = ask(stored.alice, text, made)
                continue
            shown = json.loads(text)
            num_shown += 1
            told = answer if set(shown) != {"cache"} else {"cache": answer["cache"]}
            assert shape(told) == shape(shown)
    engine.tiers = {}

    assert set(made) == {"session", "prefix"}
    assert num_shown >= 10


def ask(client: httpx.Client, text: str, made: dict[str, str]) -> Any:
    """Send one example; `made` gives ids for its places, and learns those of new things."""
    for name, known in made.items():
        text = text.replace(f"{{{name}}}", known)
    head, _, content = text.replace("SmolLM2-135M-Instruct", "scripted").partition("\n")
    method, path = head.split(" ")
    response = client.request(method, path, content=content)
    assert response.status_code == 200, (text, response.text)
    answer = response.json()
    kinds = {"/v1/sessions": "session", "/admin/prefixes": "prefix"}
    if method == "POST" and path in kinds:
        made[kinds[path]] = answer["id"]
    return answer


def shape(value: Any) -> Any:
    """The names in JSON data, and the kinds of what they name."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
