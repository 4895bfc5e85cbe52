"""The messages of a chat request: their roles, and content as text, parts of text, or null.

Content becomes what the template is given: a string, or None. Parts are joined, so three parts say what their
concatenation says; an empty array is the empty string.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.wire.prompt_cache import Breakpoint, PromptCacheBreakpoint, breakpoints_in

__all__ = ["Message"]


def _joined_text(content: object) -> object:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PydanticCustomError("content", "must be a string, an array of text parts, or null")
    return "".join(_text_of(part, place) for place, part in enumerate(content))


def _text_of(part: object, place: int) -> str:
    if not isinstance(part, dict):
        raise PydanticCustomError("content", "must be an object with a type", {"path": f"{place}"})
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise PydanticCustomError(
            "content",
            "is {kind}, which this model cannot read; send parts of type text",
            {"path": f"{place}.type", "kind": repr(kind)[:40]},
        )
    text = part.get(kind)
    if not isinstance(text, str):
        raise PydanticCustomError("content", "must be a string", {"path": f"{place}.{kind}"})
    return text


def _calls(value: object) -> object:
    """Earlier calls, of which a template may print anything: their arguments are what the model wrote."""
    for place, call in enumerate(value if isinstance(value, list) else ()):
        kind = call.get("type", "function") if isinstance(call, dict) else "function"
        if kind not in ("function", None):
            raise PydanticCustomError("call", 'must be "function"', {"path": f"{place}.type"})
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            raise PydanticCustomError("call", "must be a function's name", {"path": f"{place}.function.name"})
    return value


class ContentPart(BaseModel):
    """A part of a message's content, as it is described; it is read by `_text_of`."""

    type: Literal["text", "refusal"]
    text: str = ""  # of a text
    refusal: str = ""  # of a refusal
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None


_Content = str | list[ContentPart] | None


class Message(BaseModel):
    """One message. What a template may print is kept; the rest of its fields are dropped."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_joined_text, json_schema_input_type=_Content)] = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]] | None, FailFast(), BeforeValidator(_calls)] = None
    tool_call_id: str | None = None
    # by either name
    reasoning_content: str | None = None
    reasoning: str | None = None
    _breakpoints: tuple[Breakpoint, ...] = PrivateAttr(default=())

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """Where its content says that a reusable beginning ends."""
        return self._breakpoints

    @model_validator(mode="wrap")
    @classmethod
    def _with_breakpoints(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        message = handler(data)
        if message.tool_calls and message.role != "assistant":
            raise PydanticCustomError("call", "belongs to an assistant's message", {"path": "tool_calls"})
        if isinstance(data, dict) and (found := breakpoints_in(data.get("content"))):
            message._breakpoints = found
        return message

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: a plain dict, without the keys that were not given."""
        return {"content": self.content} | self.model_dump(exclude_none=True)
