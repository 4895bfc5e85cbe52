"""The fields by which a client says what the model may call, and whether it must.

A choice of tools comes in five forms on the wire; all of them are read into one.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast
from pydantic_core import PydanticCustomError

__all__ = ["ChoiceField", "Function", "Tool", "ToolChoice", "ToolsField"]

_MODES = ("none", "auto", "required")


class Function(BaseModel):
    """What can be called. Without parameters it takes any object."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool of the only kind that is served."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates expect it. Whether it is strict is nothing that a model need read."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


class ToolChoice(BaseModel):
    """Whether a tool is called, and which."""

    model_config = ConfigDict(frozen=True)

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...] | None = None  # those that may be called; None for all
    is_one: bool = False  # a tool was named: it is called once


def _read_choice(value: object) -> object:
    if value is None or isinstance(value, ToolChoice):
        return value
    if isinstance(value, str) and value in _MODES:
        return ToolChoice(mode=value)
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind == "function":
        return ToolChoice(mode="required", names=(_name_in(value, "function.name"),), is_one=True)
    if isinstance(value, dict) and kind == "allowed_tools":
        return _read_allowed(value.get("allowed_tools"))
    raise PydanticCustomError(
        "tool_choice", 'must be "none", "auto", "required", or an object that names a function'
    )


def _read_allowed(value: object) -> ToolChoice:
    fields = value if isinstance(value, dict) else {}
    mode, tools = fields.get("mode"), fields.get("tools")
    if mode not in ("auto", "required"):
        raise PydanticCustomError(
            "tool_choice", 'must be "auto" or "required"', {"path": "allowed_tools.mode"}
        )
    if not isinstance(tools, list):
        raise PydanticCustomError("tool_choice", "must be an array of tools", {"path": "allowed_tools.tools"})
    path = "allowed_tools.tools.{}.function.name"
    names = tuple([_name_in(tool, path.format(place)) for place, tool in enumerate(tools)])
    return ToolChoice(mode=mode, names=names)


def _name_in(value: object, path: str) -> str:
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise PydanticCustomError("tool_choice", "must be a function's name", {"path": path})
    return name


ToolsField = Annotated[list[Tool] | None, FailFast()]
_Choice = Literal["none", "auto", "required"] | dict[str, Any] | None

ChoiceField = Annotated[ToolChoice | None, BeforeValidator(_read_choice, json_schema_input_type=_Choice)]
