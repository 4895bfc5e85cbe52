"""The fields by which a client says how an answer must read: the protocol's, and those of other servers."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from pydantic_core import PydanticCustomError

__all__ = ["JsonSchema", "ResponseFormat", "StructuredOutputs"]


class JsonSchema(BaseModel):
    """A schema with a name, which changes nothing."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """Text, any JSON object, or what a schema allows."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")  # of an object, as llama.cpp has it


def _schema(value: object) -> object:
    if value is None or isinstance(value, dict | str):
        return value
    raise PydanticCustomError("schema", "must be a JSON schema, as an object or as text")


class StructuredOutputs(BaseModel):
    """One of several ways, as some other servers have it. An unknown one is refused: it would be missed."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    json_: Annotated[dict[str, Any] | str | None, BeforeValidator(_schema)] = Field(
        default=None, alias="json"
    )
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str] | None, FailFast()] = None
    grammar: str | None = None
