"""The description of what is served as an OpenAPI document, made of the types that requests are read with and
answers written from.

What the schemas of requests allow, the server may still refuse: ranges are in them, but not what fields
demand of each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema

from gateway.description.operations import Operation
from gateway.wire.chat_limits import CHAT_RANGES
from gateway.wire.completion_limits import COMPLETION_RANGES
from gateway.wire.limits import RANGES, Range
from gateway.wire.operations_answers import ErrorAnswer

__all__ = ["describe"]

Schema = dict[str, Any]

_SCHEMAS = "#/components/schemas/"
_REASONS = {
    400: "The request is wrong.",
    401: "No key, or an unknown one.",
    403: "The key has not this right.",
    404: "There is none of this name.",
    408: "The body stopped coming.",
    409: "Somebody else works on it, or it cannot be kept.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    429: "Too much of the tenant's waits already.",
    500: "A fault of the server's.",
    503: "Loading, being replaced, or draining.",
}
_QUERY: Mapping[str, Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "after": {"type": "string"},
    "tier": {"type": "string", "enum": ["device", "host", "disk"]},
}
_RANGES: Mapping[str, Mapping[str, Range]] = {
    "ChatRequest": {**RANGES, **CHAT_RANGES},
    "CompletionRequest": {**RANGES, **COMPLETION_RANGES},
}
_EXACT = 1 << 53  # limits above it are no limits to a client


def describe(operations: Sequence[Operation], *, version: str, models: Sequence[str]) -> Schema:
    """The whole document, OpenAPI 3.1. `models` are the names that requests may use."""
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stemma", "version": version, "summary": "A chat gateway with a prefix cache."},
        "paths": paths,
        "components": {
            "schemas": {**_of_requests(operations, models), **_of_answers(operations)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> Schema:
    described: Schema = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {
            "200": {"description": "As asked.", "content": _content(operation)},
            **{str(status): _error(status) for status in operation.statuses},
        },
        "security": [] if operation.is_open else [{"key": []}],
    }
    if operation.body is not None:
        schema = {"$ref": _SCHEMAS + operation.body.__name__}
        content = {"application/json": {"schema": schema}}
        described["requestBody"] = {"required": operation.needs_body, "content": content}
    if operation.answer is not None and operation.answer.__name__ == "Health":
        described["responses"]["503"] = {"description": "Not yet.", "content": _content(operation)}
    return described


def _operation_id(operation: Operation) -> str:
    words = operation.path.strip("/").replace("{", "").replace("}", "").replace(".", "/").split("/")
    return "_".join([operation.method.lower(), *(word for word in words if word)])


def _path_parameters(operation: Operation) -> list[Schema]:
    if "{id}" not in operation.path:
        return []
    return [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]


def _query_parameters(operation: Operation) -> list[Schema]:
    return [
        {"name": name, "in": "query", "required": False, "schema": _QUERY[name]} for name in operation.query
    ]


def _content(operation: Operation) -> Schema:
    content: Schema = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": {"$ref": _SCHEMAS + operation.answer.__name__}}
    if operation.items is not None:
        content["application/json"] = {"schema": _page(operation.items)}
    if operation.events is not None:
        data = f"Events with data, each a {operation.events.__name__}, or an error object; comments."
        content["text/event-stream"] = {"schema": {"type": "string", "description": data}}
    if operation.text is not None:
        kind = "object" if operation.text == "application/json" else "string"
        content[operation.text] = {"schema": {"type": kind}}
    return content


def _page(items: type[msgspec.Struct]) -> Schema:
    cursor = {"type": ["string", "integer", "null"]}
    fields: Schema = {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": _SCHEMAS + items.__name__}},
        "first_id": cursor,
        "last_id": cursor,
        "has_more": {"type": "boolean"},
    }
    return {"type": "object", "properties": fields, "required": [*fields]}


def _error(status: int) -> Schema:
    schema = {"$ref": _SCHEMAS + ErrorAnswer.__name__}
    return {"description": _REASONS[status], "content": {"application/json": {"schema": schema}}}


def _of_requests(operations: Iterable[Operation], models: Sequence[str]) -> Schema:
    bodies = dict.fromkeys(each.body for each in operations if each.body is not None)
    _, told = models_json_schema([(body, "validation") for body in bodies], ref_template=_SCHEMAS + "{model}")
    schemas: Schema = told["$defs"]
    for name, ranges in _RANGES.items():
        for field, limits in ranges.items():
            _limit(schemas[name]["properties"][field], limits)
    for schema in schemas.values():
        if "model" in schema["properties"]:
            schema["properties"]["model"] = {"enum": [*models, None][: None if _may_lack(schema) else -1]}
    return schemas


def _may_lack(schema: Schema) -> bool:
    return "model" not in schema.get("required", ())


def _limit(schema: Schema, limits: Range) -> None:
    """Write a range into the schema of a number that may be null. Mutates."""
    number = next(each for each in schema["anyOf"] if each["type"] in ("integer", "number"))
    number["exclusiveMinimum" if limits.is_open else "minimum"] = limits.low
    if limits.high < _EXACT:
        number["maximum"] = limits.high


def _of_answers(operations: Sequence[Operation]) -> Schema:
    used = chain.from_iterable((each.answer, each.items, each.events) for each in operations)
    structs = dict.fromkeys(each for each in (*used, ErrorAnswer) if each is not None)
    _, schemas = msgspec.json.schema_components([*structs], ref_template=_SCHEMAS + "{name}")
    return schemas
