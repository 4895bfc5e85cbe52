"""The table of docs/api.md against the routes, the SDK's parameters and the tests that it names."""

import re
from pathlib import Path
from typing import Any

import httpx
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from tests.gateway.routes.test_contract import REFUSED, SAYS_NOTHING, names_in

REPOSITORY = Path(__file__).parents[2]
SECTION = (REPOSITORY / "docs" / "api.md").read_text().split("## The whole contract")[1].split("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line[:3] == "| `"
]
ENDPOINTS = {row[0].strip("`"): row[1] for row in ROWS if len(row) == 2}
PARAMETERS = {row[0].strip("`"): row[1:] for row in ROWS if len(row) == 4}


def test_the_endpoints_are_those_that_are_served(client: httpx.Client) -> None:
    served = {
        re.sub(r"\{\w+(:path)?\}", "{id}", endpoint) for endpoint in client.get("/").json()["endpoints"]
    }

    assert set(ENDPOINTS) == served


def test_the_parameters_are_those_of_the_sdk_and_what_becomes_of_them() -> None:
    of_chat, of_completions = names_in(chat_create_params), names_in(completion_create_params)

    def fate(name: str, names: set[str]) -> str:
        if name not in names:
            return "—"
        if name in REFUSED:
            return "refused"
        return "accepted, changes nothing" if name in SAYS_NOTHING else "served"

    expected: dict[str, Any] = {
        name: [fate(name, of_chat), fate(name, of_completions)] for name in of_chat | of_completions
    }
    assert {name: fates[:2] for name, fates in PARAMETERS.items()} == expected


def test_the_tests_are_there_and_speak_of_the_parameter() -> None:
    named = [(name, cells[-1]) for name, cells in PARAMETERS.items()]
    named += [("", cell) for cell in ENDPOINTS.values()]
    for name, cell in named:
        files = re.findall(r"`(tests/\S+?)`", cell)
        assert files, name
        for file in files:
            assert name in (REPOSITORY / file).read_text(), (name, file)
