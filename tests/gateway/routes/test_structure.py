"""The fields that say how an answer must read: what reaches the engine, and what is refused by name."""

from typing import Any

import httpx
import pytest

from tests.fakes import ScriptedEngine
from tests.gateway.talk import chat, complete, error_of, stream

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
SAID: list[tuple[dict[str, Any], str]] = [
    ({"response_format": FORMAT}, '"a"'),
    ({"response_format": {"type": "json_object"}}, "%json"),
    ({"regex": "[0-9]+"}, "/[0-9]+/"),
    ({"choice": ["yes", "no"]}, '"yes" | "no"'),
    ({"grammar": 'start: "a"'}, '%lark {\nstart: "a"\n}'),
    ({"structured_outputs": {"json": SCHEMA}}, '"a"'),
    ({"structured_outputs": {"json": '{"const": "text"}'}}, '"text"'),
    ({"structured_outputs": {"json_object": True}}, "%json"),
    ({"structured_outputs": {"regex": "a"}}, "/a/"),
    ({"structured_outputs": {"choice": ["a"]}}, '"a"'),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, '"a"'),
    ({"response_format": {"type": "json_object", "schema": {"properties": {"q": {}}}}}, '"q"'),
]


@pytest.mark.parametrize(("fields", "words"), SAID)
@pytest.mark.parametrize("ask", [chat, complete])
def test_a_grammar_reaches_the_engine(
    client: httpx.Client, engine: ScriptedEngine, ask: Any, fields: dict[str, Any], words: str
) -> None:
    assert ask(client, **fields).status_code == 200

    grammar = engine.submits[0].sampling.grammar
    assert grammar is not None
    assert grammar.startswith("start: ")
    assert words in grammar


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": None}},
    ],
)
def test_an_answer_may_be_anything_when_nothing_is_said(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any]
) -> None:
    stream(client, **fields)

    assert engine.submits[0].sampling.grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.name",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"properties": {"a": {"type": "x"}}}},
                }
            },
            "response_format.json_schema.schema.properties.a",
        ),
        ({"regex": "("}, "regex"),
        ({"regex": 5}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": "a"}, "choice"),
        ({"grammar": "start: ("}, "grammar"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": True}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"regex": "a", "min_tokens": 3}, "min_tokens"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "a", "use_beam_search": True, "temperature": 0}, "use_beam_search"),
        ({"guided_regex": "a"}, "guided_regex"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_what_cannot_be_meant_is_refused_by_name(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], param: str, streamed: bool
) -> None:
    assert error_of(chat(client, stream=streamed, **fields), 400)["param"] == param
    assert engine.submits == []
