"""How an answer must read, as a part of a grammar: from whichever of a request's fields says it."""

import json
from collections.abc import Iterator

from gateway.errors import InvalidRequest
from gateway.grammars import choice_part, lark_part, regex_part
from gateway.schemas import ANY_OBJECT, schema_part
from gateway.wire.structure_fields import ResponseFormat, StructuredOutputs
from gateway.wire.text_request import TextRequest

__all__ = ["structure_part"]


def structure_part(request: TextRequest) -> str | None:
    """The part that the answer must be; None if it may be anything. Raises InvalidRequest.

    A large schema takes up to a tenth of a second.
    """
    return next(_parts(request), None)


def _parts(request: TextRequest) -> Iterator[str]:
    if request.response_format is not None:
        yield from _of_format(request.response_format)
    if request.regex is not None:
        yield regex_part(request.regex, path="regex")
    if request.choice is not None:
        yield choice_part(request.choice, path="choice")
    if request.grammar is not None:
        yield lark_part(request.grammar, path="grammar")
    if request.structured_outputs is not None:
        yield from _of_outputs(request.structured_outputs)


def _of_format(asked: ResponseFormat) -> Iterator[str]:
    if asked.type == "json_object":
        if asked.schema_ is None:
            yield schema_part(ANY_OBJECT, is_strict=True, path="response_format")
        else:
            yield schema_part(asked.schema_, is_strict=False, path="response_format.schema")
    elif asked.type == "json_schema":
        path = "response_format.json_schema"
        if asked.json_schema is None:
            raise InvalidRequest(f"{path} is missing: it has the schema's name and the schema.", param=path)
        if asked.json_schema.schema_ is None:
            raise InvalidRequest(f"{path}.schema is missing: send the JSON schema.", param=f"{path}.schema")
        yield schema_part(
            asked.json_schema.schema_, is_strict=bool(asked.json_schema.strict), path=f"{path}.schema"
        )


def _of_outputs(asked: StructuredOutputs) -> Iterator[str]:
    path = "structured_outputs"
    if asked.json_ is not None:
        yield schema_part(_parsed(asked.json_, f"{path}.json"), is_strict=False, path=f"{path}.json")
    if asked.json_object:
        yield schema_part(ANY_OBJECT, is_strict=True, path=path)
    if asked.regex is not None:
        yield regex_part(asked.regex, path=f"{path}.regex")
    if asked.choice is not None:
        yield choice_part(asked.choice, path=f"{path}.choice")
    if asked.grammar is not None:
        yield lark_part(asked.grammar, path=f"{path}.grammar")


def _parsed(schema: object, path: str) -> object:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{path} is no JSON.", param=path) from None
