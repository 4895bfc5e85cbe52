"""A validation error of pydantic in the protocol's words: what is wrong, and the path of the field.

Only the first complaint is told. The value is never quoted, for it may be what a user wrote.
"""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import InvalidRequest

__all__ = ["to_invalid_request"]

_EXPECTED = {
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "too_long": "has too many items",
    "too_short": "is empty",
    "finite_number": "must be a finite number",
}


def to_invalid_request(error: ValidationError) -> InvalidRequest:
    """The 400 for the first thing that pydantic found."""
    first = error.errors(include_url=False, include_input=False, include_context=True)[0]
    within = first.get("ctx", {}).get("path")  # where, inside a value that a validator of ours reads itself
    path = ".".join(str(step) for step in (*first["loc"], *([] if within is None else [within])))
    return InvalidRequest(f"{path[:200]} {_what(first)}.", param=path[:200])


def _what(item: ErrorDetails) -> str:
    if item["type"] == "literal_error":
        return f"must be one of {item['ctx']['expected']}"
    return _EXPECTED.get(item["type"], item["msg"])
