"""Holds every answer of a server against its own description, while other tests ask."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from gateway.description.document import describe
from gateway.description.operations import OPERATIONS

__all__ = ["DOCUMENT", "HOOKS", "check_described", "faults"]

DOCUMENT: Mapping[str, Any] = describe(OPERATIONS, version="0", models=["scripted", "gpt-4o"])
_PATTERNS = [(re.compile(re.escape(path).replace(r"\{id\}", "[^/]+")), path) for path in DOCUMENT["paths"]]
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "array": list, "boolean": bool, "integer": int, "number": (int, float), "object": dict, "string": str,
    "null": type(None),
}  # fmt: skip


def check_described(response: httpx.Response) -> None:
    """A hook of httpx: the status, the media type and the body are those that the description names."""
    operation = _operation(response.request)
    if operation is None or response.status_code in (404, 405):
        return  # nothing that is described, or a place in it that nobody has
    told = operation["responses"].get(str(response.status_code))
    assert told is not None, f"{response.request.url.path} does not describe {response.status_code}"
    media = response.headers["content-type"].partition(";")[0]
    assert media in told["content"], (media, response.request.url.path)
    if media == "application/json" and response.request.method != "HEAD":
        response.read()
        found = [*faults(told["content"][media]["schema"], json.loads(response.text))]
        assert found == [], (response.request.url.path, found, response.text[:500])


def faults(schema: Mapping[str, Any], value: Any, path: str = "$") -> Iterator[str]:
    """Where a value is not what a schema says; of JSON schema what the description uses."""
    if "$ref" in schema:
        yield from faults(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], value, path)
        return
    for several in ("anyOf", "oneOf"):
        if several in schema and all([*faults(each, value, path)] for each in schema[several]):
            yield f"{path}: none of {several}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{path}: not {schema['const']}"
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{path}: no {kinds}"
    if isinstance(value, dict):
        yield from _faults_of_object(schema, value, path)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for place, item in enumerate(value):
            yield from faults(schema["items"], item, f"{path}.{place}")


def _faults_of_object(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}: lacks {name}" for name in schema.get("required", ()) if name not in value)
    others = schema.get("additionalProperties", True)
    for name, inner in value.items():
        known = schema.get("properties", {}).get(name)
        if known is not None:
            yield from faults(known, inner, f"{path}.{name}")
        elif isinstance(others, dict):
            yield from faults(others, inner, f"{path}.{name}")
        elif "properties" in schema:
            yield f"{path}: {name} is not described"


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _operation(request: httpx.Request) -> Any:
    found = next((path for pattern, path in _PATTERNS if pattern.fullmatch(request.url.path)), None)
    return None if found is None else DOCUMENT["paths"][found].get(request.method.lower())


HOOKS: dict[str, list[Any]] = {"response": [check_described]}
