"""How routes answer: a value as JSON."""

import msgspec
from starlette.responses import Response

__all__ = ["json_response"]


def json_response(value: msgspec.Struct) -> Response:
    """A 200 with the value."""
    return Response(msgspec.json.encode(value), media_type="application/json")
