"""The description of what is served: it names every route, and nothing else; and it can be read."""

import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from gateway.app import build_app
from gateway.conversation.prompt import Prompts
from gateway.description.operations import OPERATIONS
from gateway.settings import Settings
from tests.fakes import ScriptedEngine
from tests.gateway.described import DOCUMENT, faults
from tests.live import scripted_services


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        named = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return named.union(*[references(each) for each in value.values()])
    return set().union(*[references(each) for each in value]) if isinstance(value, list) else set()


def test_every_route_is_described_and_nothing_else(engine: ScriptedEngine, prompts: Prompts) -> None:
    app = build_app(Settings(), scripted_services(engine, prompts))
    served = {
        f"{method} {re.sub('{[^}]*}', '{id}', route.path)}"
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }

    assert {operation.name for operation in OPERATIONS} == served
    assert len(OPERATIONS) == len(served)


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}

    assert references(DOCUMENT) <= known


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [each["operationId"] for methods in DOCUMENT["paths"].values() for each in methods.values()]

    assert len(set(names)) == len(names)


def test_the_document_is_served(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == DOCUMENT


def test_ranges_are_those_of_the_checks() -> None:
    schemas = DOCUMENT["components"]["schemas"]

    temperature = schemas["ChatRequest"]["properties"]["temperature"]["anyOf"]
    best_of = schemas["CompletionRequest"]["properties"]["best_of"]["anyOf"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in temperature
    assert {"type": "integer", "minimum": 1, "maximum": 16} in best_of


def test_what_may_be_sent_in_several_forms_is_described_in_all_of_them() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    chat = {
        "model": "gpt-4o",
        "messages": [message],
        "stop": "x",
        "cache": "read-only",
        "tool_choice": "auto",
    }
    schemas = DOCUMENT["components"]["schemas"]

    assert [*faults(schemas["ChatRequest"], chat)] == []
    for prompt in ("a", ["a"], [1], [[1]]):
        assert [*faults(schemas["CompletionRequest"], {"model": "scripted", "prompt": prompt})] == []


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.ids: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.tags.add(tag)
        self.ids.add(told.get("id") or "")
        self.targets.add(told.get("href") or told.get("src") or "")


def test_the_page_fetches_nothing_and_its_links_lead_somewhere(client: httpx.Client) -> None:
    links = Links()
    response = client.get("/docs")
    links.feed(response.text)

    assert response.headers["content-type"].startswith("text/html")
    assert links.targets <= {"", "openapi.json", *[f"#{each}" for each in links.ids]}
    assert not links.tags & {"script", "link", "img"}


@pytest.mark.parametrize("value", [{"error": {"message": 1}}, {"error": None}, {}, {"errors": 1}])
def test_a_body_that_is_not_described_is_found_out(value: Any) -> None:
    assert [*faults({"$ref": "#/components/schemas/ErrorAnswer"}, value)]
