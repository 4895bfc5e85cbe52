"""A client's JSON schema on its way to a grammar: what cannot be followed is refused, and where it stands.

A strict schema is followed to the letter or refused. One that is not strict is followed as far as it can be:
what the grammar has no means for is left to the model, and `oneOf` is taken as `anyOf`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import lcm
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
# Of all multipleOf together: 10,000 take a tenth of a second to compile, 31,536,000 take a minute and a half.
_MAX_REMAINDERS = 10_000
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
    _check_references(schema, path)
    if (costly := _costly_multiple(schema)) is not None:
        if is_strict:
            limit = f"all of a schema's together may come to {_MAX_REMAINDERS:,}"
            raise _refusal((path, *costly), f"costs too much to follow: {limit}")
        schema = dict(_without_multiples(schema))
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
    waiting: list[tuple[object, tuple[str, ...]]] = [(schema, ())]
    while waiting:  # not by recursion: clients choose the depth
        node, place = waiting.pop()
        num_nodes += 1
        if len(place) >= _MAX_DEPTH or num_nodes > _MAX_NODES:
            limit = f"nests deeper than {_MAX_DEPTH} levels"
            if num_nodes > _MAX_NODES:
                limit = f"has more than {_MAX_NODES:,} values"
            raise _refusal((path,), f"{limit}; make it simpler")
        if isinstance(node, dict):
            _check_optional(node, (path, *place))
            _check_numbers(node, (path, *place))
            waiting += [(value, (*place, name)) for name, value in node.items()]
        elif isinstance(node, list):
            waiting += [(value, (*place, str(number))) for number, value in enumerate(node)]
    return num_nodes


def _refusal(place: Sequence[str], fault: str) -> InvalidRequest:
    where = ".".join(place)[:200]
    return InvalidRequest(f"{where} {fault}.", param=where, code="invalid_json_schema")


def _check_optional(node: Mapping[str, Any], place: Sequence[str]) -> None:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, dict):
        return
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if len(properties.keys() - needed) > _MAX_OPTIONAL:
        raise _refusal(
            place,
            f"has an object of which more than {_MAX_OPTIONAL} properties may be left out; require some of "
            "them",
        )


def _check_numbers(node: Mapping[str, Any], place: Sequence[str]) -> None:
    for name in (*_NUMBERS, *_COUNTS):
        value = node.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) <= _MAX_NUMBER:
            raise _refusal(
                place, f"has a {name} beyond 2^53, to which numbers are exact; choose a smaller one"
            )
    multiple = node.get("multipleOf")
    if isinstance(multiple, int | float) and multiple <= 0:
        raise _refusal(place, "has a multipleOf that is not above 0")


def _check_references(schema: Mapping[str, Any], path: str) -> None:
    """Refuse a reference that leads to nothing but references, and so back to itself."""
    sound: set[int] = set()  # ids of what leads to an end
    for place, node in _objects(schema):
        chain: set[int] = set()
        target: object = node
        while isinstance(target, dict) and id(target) not in sound and isinstance(target.get("$ref"), str):
            if id(target) in chain:
                raise _refusal((path, *place), "has a $ref that leads back to itself")
            chain.add(id(target))
            target = _resolved(target["$ref"], schema)
        sound |= chain


def _resolved(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference inside the schema names; None for what is not found."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    target: object = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _costly_multiple(schema: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The place of a multiple that costs too much: an automaton counts the remainders of each, and of those
    that hold for one number those of their common multiple.
    """
    common, together = 1, 0
    for place, node in _objects(schema):
        multiple = node.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool):
            count = _remainders(multiple)
            common, together = lcm(common, count), together + count
            if max(common, together) > _MAX_REMAINDERS:
                return *place, "multipleOf"
    return None


def _remainders(multiple: float) -> int:
    if multiple == int(multiple):
        digits = str(int(multiple))
        return 1 if digits.rstrip("0") == "1" else int(digits)
    return int("".join(map(str, Decimal(str(multiple)).as_tuple().digits)))


def _without_multiples(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_multiples(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        name: _without_multiples(value)
        for name, value in node.items()
        if name != "multipleOf" or isinstance(value, dict)
    }


def _objects(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """A schema and all objects inside it, with their places."""
    waiting: list[tuple[tuple[str, ...], object]] = [((), schema)]
    while waiting:
        place, node = waiting.pop()
        if isinstance(node, dict):
            yield place, node
            waiting += [((*place, name), value) for name, value in node.items()]
        elif isinstance(node, list):
            waiting += [((*place, str(number)), value) for number, value in enumerate(node)]


def _check_followed(schema: Mapping[str, Any], path: str) -> None:
    """Refuse what the library takes and does not follow to the letter."""
    is_draft_4 = "draft-04" in str(schema.get("$schema"))
    for place, node in _objects(schema):
        least, required = node.get("minProperties"), node.get("required")
        num_required = len(set(map(str, required))) if isinstance(required, list) else 0
        if isinstance(least, int | float) and least > max(num_required, 1):
            fault = "minProperties above 1 beside names that are free, which may repeat"
        elif is_draft_4 and isinstance(node.get("items"), list):
            fault = "items as a list in draft 4; name a later draft, or send prefixItems"
        else:
            continue
        raise _refusal((path, *place), f"cannot be followed to the letter: {fault}")


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
