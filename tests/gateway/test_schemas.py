"""Which schemas are followed, and what is told of those that are not."""

import importlib
import inspect
import pkgutil
import random
from typing import Any

import numpy as np
import openai.types
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from pydantic import BaseModel, Field, TypeAdapter

import gateway.schemas
from engine.deep_threads import deep_thread
from gateway.errors import InvalidRequest
from gateway.grammars import whole
from gateway.schemas import ANY_OBJECT, schema_part

PATH = "response_format.json_schema.schema"
END = 256


class _Bytes:
    """A vocabulary of single bytes and an end."""

    eos_token_id, bos_token_id, special_token_ids = END, None, (END,)
    tokens = (*[bytes([byte]) for byte in range(256)], b"\xff<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=END)


def matcher_of(schema: Any, *, is_strict: bool = True) -> LLMatcher:
    part = schema_part(schema, is_strict=is_strict, path=PATH)
    return LLMatcher(TOKENIZER, '%llguidance {"no_forcing": true}\n' + whole(part))


def allows(schema: Any, text: str, *, is_strict: bool = True) -> bool:
    matcher = matcher_of(schema, is_strict=is_strict)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


def write(matcher: LLMatcher, seed: int) -> str:
    """What the grammar allows, drawn; a text that grows long takes what closes it."""
    chance, written = random.Random(seed), b""
    while True:
        bits = allocate_token_bitmask(1, TOKENIZER.vocab_size)
        fill_next_token_bitmask(matcher, bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: END + 1]).tolist()
        assert allowed, matcher.get_error()
        closing = [each for each in allowed if each in (END, *b'"]}')]
        token = chance.choice(closing if closing and len(written) > 40 else allowed)
        if token == END:
            return written.decode()
        written += bytes([token])
        assert matcher.consume_token(token)
        assert len(written) < 20_000


def refusal(schema: Any, *, is_strict: bool = True) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as found:
        schema_part(schema, is_strict=is_strict, path=PATH)
    return found.value


@pytest.mark.parametrize(
    ("schema", "place", "words"),
    [
        ({"type": "objekt"}, "", "Invalid type: objekt"),
        ({"properties": {"a": {"items": {"type": "x"}}}}, ".properties.a.items", "Invalid type"),
        ({"anyOf": [{"type": "string"}, {"pattern": "(?=x)"}]}, ".anyOf.1", "look-around"),
        ({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}, ".$defs.a", "not"),
        ({"$ref": "#/$defs/a"}, "", "does not exist"),
        ({"$ref": "http://127.0.0.1/a.json"}, "", "not present"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "", "minimum (5)"),
        ({"enum": []}, "", "empty"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_where_it_fails(
    schema: Any, place: str, words: str
) -> None:
    error = refusal(schema)

    assert (error.param, error.code) == (PATH + place, "invalid_json_schema")
    assert words in error.message


@pytest.mark.parametrize("schema", [[], "x", None, 5, True])
def test_what_is_no_object_is_no_schema(schema: Any) -> None:
    assert refusal(schema).param == PATH


def test_what_the_grammar_has_no_means_for_is_left_to_the_model_unless_the_schema_is_strict() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}

    assert "uniqueItems" in refusal(schema).message
    assert allows(schema, "[1, 1]", is_strict=False)


def test_a_hostile_schema_is_refused_soon() -> None:
    deep: Any = {"type": "string"}
    for _ in range(5_000):
        deep = {"properties": {"a": deep}}

    assert "deeper" in refusal(deep).message
    assert "values" in refusal({"enum": list(range(30_000))}).message
    assert "left out" in refusal({"properties": {str(number): {} for number in range(300)}}).message


def test_blanks_may_be_written_and_not_for_ever() -> None:
    assert allows(ANY_OBJECT, '{"a": 1}')
    assert allows(ANY_OBJECT, '{\n  "a": [\n    1\n  ]\n}')
    assert not allows(ANY_OBJECT, '{"a":' + " " * 40 + "1}")


def test_a_clients_own_options_say_nothing() -> None:
    schema = {"type": "object", "x-guidance": {"whitespace_flexible": True, "whitespace_pattern": "[ ]*"}}
    assert not allows(schema, '{"a":' + " " * 40 + "1}")


class Address(BaseModel):
    street: str
    zip_code: str = Field(pattern=r"^[0-9]{5}$")


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    height: float | None = None
    tags: list[str] = Field(max_length=3)
    home: Address
    friends: list["Person"] = Field(default=[], max_length=1)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", [Address, Person, list[Address], dict[str, int], Address | int])
def test_whatever_is_drawn_is_what_the_schema_says(kind: Any, seed: int) -> None:
    adapter = TypeAdapter(kind)

    adapter.validate_json(write(matcher_of(adapter.json_schema()), seed), strict=True)


def test_the_schemas_of_a_public_package_are_all_followed() -> None:
    """Every model of the protocol's own package: about 2,750, nested, recursive, with unions."""
    schemas = {}
    for module in pkgutil.walk_packages(openai.types.__path__, "openai.types."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            is_model = inspect.isclass(kind) and issubclass(kind, BaseModel)
            if is_model and kind.__module__ == module.name:
                schemas[f"{module.name}.{name}"] = kind
    chosen = sorted(schemas)[:: len(schemas) // 300]  # all of them take a minute

    refused = []
    for name in chosen:
        try:
            schema_part(schemas[name].model_json_schema(), is_strict=True, path=name)
        except InvalidRequest as error:
            refused.append(error.message)

    assert len(chosen) >= 300
    assert refused == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -1e30, "maximum": -1e29},
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
        {"type": "integer", "minimum": 10**19, "maximum": 10**20},
        {"properties": {"a": {"exclusiveMaximum": -(2**63)}}},
        {"type": "number", "minimum": float("nan")},
        {"multipleOf": -3},
    ],
)
@pytest.mark.parametrize("is_strict", [True, False])
def test_numbers_that_are_not_exact_are_refused(schema: Any, is_strict: bool) -> None:
    assert refusal(schema, is_strict=is_strict).code == "invalid_json_schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 2},
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "array", "items": [{"const": 1}]},
    ],
)
def test_what_would_not_be_followed_to_the_letter_is_refused_where_that_is_asked(schema: Any) -> None:
    assert "to the letter" in refusal(schema).message
    schema_part(schema, is_strict=False, path=PATH)


def test_long_chains_of_references_end_no_process() -> None:
    chain: Any = {f"a{place}": {"$ref": f"#/$defs/a{place + 1}"} for place in range(6_000)}
    chain["a6000"] = {"type": "string"}
    with deep_thread("test") as thread:
        found = thread.submit(schema_part, {"$ref": "#/$defs/a0", "$defs": chain}, is_strict=True, path=PATH)
        assert found.result().startswith("%json")


def test_the_place_of_a_fault_is_not_looked_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    read = gateway.schemas.first_fault
    monkeypatch.setattr(
        gateway.schemas, "first_fault", lambda grammar: tried.append(grammar) or read(grammar)
    )
    parts: Any = [{"const": number} for number in range(9_000)]

    error = refusal({"$defs": {"a": {"anyOf": parts}}, "anyOf": [*parts[:900], {"type": "objekt"}]})

    assert error.param == PATH
    assert len(tried) < 20

    assert refusal({"anyOf": [*parts[:50], {"type": "objekt"}]}).param == f"{PATH}.anyOf.50"


def multiples(*values: float) -> dict[str, Any]:
    names = [f"a{place}" for place in range(len(values))]
    properties = {name: {"multipleOf": value} for name, value in zip(names, values, strict=True)}
    return {"type": "object", "properties": properties, "required": names}


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ((999_983,), 0),
        ((31_536_000,), 0),
        ((86_400.0,), 0),
        ((997, 991), 1),
        ((5, 9_999), 1),
        ((1.00007,), 0),
    ],
)
def test_multiples_that_cost_too_much_are_refused_or_left_to_the_model(
    values: tuple[float, ...], place: int
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        schema_part(multiples(*values), is_strict=True, path="p")

    assert refused.value.param in {f"p.properties.a{each}.multipleOf" for each in range(len(values))}
    assert "multipleOf" not in schema_part(multiples(*values), is_strict=False, path="p")


@pytest.mark.parametrize("values", [(3600, 0.01, 60, 24), (1_000_000,), (0.25, 0.05), (1e-6,), (9_999,)])
def test_usual_multiples_are_followed(values: tuple[float, ...]) -> None:
    assert "multipleOf" in schema_part(multiples(*values), is_strict=True, path="p")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"n": {"$ref": "#/properties/n"}}}, "p.properties.n"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "p.$defs."),
        ({"$ref": "#"}, "p"),
        ({"items": {"anyOf": [{"$ref": "#/items/anyOf"}, {"minimum": 1e300}]}}, "p.items.anyOf.1"),
        ({"properties": {"a": {"type": "integer", "multipleOf": 0}}}, "p.properties.a"),
    ],
)
@pytest.mark.parametrize("is_strict", [True, False])
def test_what_is_wrong_in_any_schema_is_refused_at_its_place(
    schema: Any, place: str, is_strict: bool
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        schema_part({"type": "object", **schema}, is_strict=is_strict, path="p")

    assert str(refused.value.param).startswith(place)
    assert (refused.value.param == place) != place.endswith(".")
