"""Bytes of a request body to plain objects.

msgspec decodes: it refuses NaN and infinities, bad UTF-8, lone surrogates and trailing text by itself. Of a
key that stands twice the last counts. Nesting is bounded by the decoder's own stack check. Every refusal is
a 400.
"""

import codecs

import msgspec

from gateway.errors import InvalidRequest, UnsupportedMediaType

__all__ = ["decode_object", "require_json"]

_ACCEPTED_TYPES = frozenset({"", "application/json", "text/json"})


def require_json(content_type: str) -> None:
    """Refuse a body that says it is something else. `curl -d` without a header sends a form's type."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in _ACCEPTED_TYPES or media_type.endswith("+json"):
        return
    raise UnsupportedMediaType("The body must be JSON: send the header content-type: application/json.")


def decode_object(body: bytes) -> dict[str, object]:
    """Decode a JSON object. Raises InvalidRequest for anything else."""
    if not body.strip():
        raise InvalidRequest("The body is empty; send a JSON object.", code="invalid_json")
    if body.startswith(codecs.BOM_UTF8):
        raise InvalidRequest("The body begins with a byte-order mark; send plain UTF-8.", code="invalid_json")
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(_in_words(error), code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest(
            "The body is nested too deeply; a chat request needs a dozen levels.", code="invalid_json"
        ) from None
    if not isinstance(decoded, dict):
        raise InvalidRequest("The body must be a JSON object, such as {...}.", code="invalid_json")
    return decoded


def _in_words(error: msgspec.MsgspecError) -> str:
    """What was wrong, where the decoder's own words would puzzle."""
    words = str(error)
    if "surrogate" in words:
        return "The body holds half of a surrogate pair (\\ud800 to \\udfff); send whole characters."
    if "truncated" in words:
        return "The body is not valid JSON: it ends too early, or with half of a surrogate pair in a string."
    if "out of range" in words:
        return "The body holds a number that no 64-bit float can hold; send a smaller one."
    return f"The body is not valid JSON: {words}."
