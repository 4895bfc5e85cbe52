"""A client's JSON schema on its way to a grammar: what cannot be followed is refused, and where it stands.

A strict schema is followed to the letter or refused. One that is not strict is followed as far as it can be:
what the grammar has no means for is left to the model, and `oneOf` is taken as `anyOf`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.grammars import first_fault

__all__ = ["ANY_OBJECT", "schema_part"]

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

_MAX_DEPTH = 32
_MAX_NODES = 20_000
# What is read at most to find where a fault stands: everybody's schemas wait for it. A small one is searched
# whole.
_TRIED_VALUES, _MIN_TRIES = 200_000, 8
# Properties of one object that may be left out: each can stand before any later one, and the matcher keeps
# count of what may still come.
_MAX_OPTIONAL = 200
# The library counts integers in 64 bits, and JSON's numbers are exact to here.
_MAX_NUMBER = 1 << 53
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# Enough to indent by: a model that may write blanks at will may write them for ever.
_OPTIONS = {"whitespace_pattern": r"[ \n]{0,16}"}
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def schema_part(schema: object, *, is_strict: bool, path: str) -> str:
    """The grammar of texts that a schema allows, as a part of Lark's: `%json {...}`.

    `path` is where the schema stands in the body. Raises InvalidRequest. A large schema takes up to a tenth
    of a second.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{path} must be a JSON schema, which is an object.", param=path)
    num_values = _check_size(schema, path)
    if is_strict:
        _check_followed(schema, path)
    options = {**_OPTIONS, "lenient": not is_strict, "coerce_one_of": not is_strict}
    if (fault := _fault(schema, options)) is not None:
        place = _Search(fault, schema, options, max(_MIN_TRIES, _TRIED_VALUES // num_values)).place_in(schema)
        where = ".".join((path, *place))[:200]
        raise InvalidRequest(f"{where} cannot be followed: {fault}", param=where, code="invalid_json_schema")
    return _as_grammar(schema, options)


def _as_grammar(schema: Mapping[str, Any], options: Mapping[str, object]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": options})


def _fault(schema: Mapping[str, Any], options: Mapping[str, object]) -> str | None:
    """Why a schema cannot be followed, in the library's words; None if it can be."""
    return first_fault("start: " + _as_grammar(schema, options))


def _check_size(schema: Mapping[str, Any], path: str) -> int:
    """How many values a schema has."""
    num_nodes = 0
    waiting: list[tuple[object, int]] = [(schema, 1)]
    while waiting:  # not by recursion: clients choose the depth
        node, depth = waiting.pop()
        num_nodes += 1
        if depth > _MAX_DEPTH or num_nodes > _MAX_NODES:
            limit = f"nests deeper than {_MAX_DEPTH} levels"
            if num_nodes > _MAX_NODES:
                limit = f"has more than {_MAX_NODES:,} values"
            raise InvalidRequest(f"{path} {limit}; make it simpler.", param=path, code="invalid_json_schema")
        if isinstance(node, dict):
            _check_optional(node, path)
            _check_numbers(node, path)
            waiting += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, list):
            waiting += [(value, depth + 1) for value in node]
    return num_nodes


def _check_optional(node: Mapping[str, Any], path: str) -> None:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, dict):
        return
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if len(properties.keys() - needed) > _MAX_OPTIONAL:
        raise InvalidRequest(
            f"{path} has an object of which more than {_MAX_OPTIONAL} properties may be left out; require "
            "some of them.",
            param=path,
            code="invalid_json_schema",
        )


def _check_numbers(node: Mapping[str, Any], path: str) -> None:
    for name in (*_NUMBERS, *_COUNTS):
        value = node.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) <= _MAX_NUMBER:
            raise InvalidRequest(
                f"{path} has a {name} beyond 2^53, to which numbers are exact; choose a smaller one.",
                param=path,
                code="invalid_json_schema",
            )
    multiple = node.get("multipleOf")
    if isinstance(multiple, int | float) and multiple <= 0:
        raise InvalidRequest(
            f"{path} has a multipleOf that is not above 0.", param=path, code="invalid_json_schema"
        )


def _check_followed(schema: Mapping[str, Any], path: str) -> None:
    """Refuse what the library takes and does not follow to the letter."""
    is_draft_4 = "draft-04" in str(schema.get("$schema"))
    waiting: list[object] = [schema]
    while waiting:
        node = waiting.pop()
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        if not isinstance(node, dict):
            continue
        least, required = node.get("minProperties"), node.get("required")
        num_required = len(set(map(str, required))) if isinstance(required, list) else 0
        if isinstance(least, int | float) and least > max(num_required, 1):
            fault = "minProperties above 1 beside names that are free, which may repeat"
        elif is_draft_4 and isinstance(node.get("items"), list):
            fault = "items as a list in draft 4; name a later draft, or send prefixItems"
        else:
            continue
        raise InvalidRequest(
            f"{path} cannot be followed to the letter: {fault}.", param=path, code="invalid_json_schema"
        )


class _Search:
    """Looks for a fault's place: the innermost part that has it alone."""

    def __init__(
        self, fault: str, root: Mapping[str, Any], options: Mapping[str, object], num_tries: int
    ) -> None:
        self._fault = fault
        self._options = options
        self._shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        self._num_left = num_tries
        if _fault(self._shared, options) == fault:
            self._num_left = 0  # it would be every part's

    def place_in(self, schema: Mapping[str, Any]) -> tuple[str, ...]:
        """The path from here, as far as it is found."""
        for path, part in _parts(schema):
            if self._num_left == 0:
                break
            self._num_left -= 1
            if _fault({**self._shared, **part}, self._options) == self._fault:
                return (*path, *self.place_in(part))
        return ()


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for name in _NAMED:
        if isinstance(group := schema.get(name), dict):
            yield from (((name, key), part) for key, part in group.items() if isinstance(part, dict))
    for name in _LISTED:
        if isinstance(group := schema.get(name), list):
            yield from (
                ((name, str(place)), part) for place, part in enumerate(group) if isinstance(part, dict)
            )
    yield from (((name,), schema[name]) for name in _SINGLE if isinstance(schema.get(name), dict))
