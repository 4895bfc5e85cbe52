"""The field `cache` of a chat request: what a client wishes of the cache, and whether it wants to be told.

`"read-only"` is short for `{"mode": "read-only"}`. Unknown members are refused by name, since a misspelt one
would be missed.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

__all__ = ["CacheField", "CacheHints"]

_PRIORITIES = {"low": -1, "normal": 0, "high": 1}


class CacheHints(BaseModel):
    """Wishes that never change an answer."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    mode: Literal["read-only", "read-write"] | None = None
    explain: bool | None = None
    priority: Literal["low", "normal", "high"] | None = None

    @property
    def is_side(self) -> bool:
        """Whether the request should leave no trace in the cache."""
        return self.mode == "read-only"

    @property
    def engine_priority(self) -> int:
        """In the engine's numbers: lower ones go first."""
        return _PRIORITIES[self.priority or "normal"]


def _from_mode(value: object) -> object:
    if isinstance(value, str):
        if value not in ("read-only", "read-write"):
            raise PydanticCustomError("cache", "must be 'read-only', 'read-write' or an object")
        return {"mode": value}
    if isinstance(value, dict):
        for name in value:
            if name not in CacheHints.model_fields:  # only the first of them is worth a complaint
                raise PydanticCustomError("cache", "is not known here", {"path": name})
    if value is None or isinstance(value, dict):
        return value
    raise PydanticCustomError("cache", "must be 'read-only', 'read-write' or an object")


_Said = CacheHints | Literal["read-only", "read-write"] | None

CacheField = Annotated[CacheHints | None, BeforeValidator(_from_mode, json_schema_input_type=_Said)]
