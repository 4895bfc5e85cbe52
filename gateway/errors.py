"""Every way a request can fail, and the one place that turns a failure into a response.

    GatewayError
    ├── InvalidRequest            400  the client can mend it; `param` says where
    │   └── ContextTooLong        400  prompt and answer do not fit
    ├── Unauthorized              401  no key, or a key nobody has
    ├── Forbidden                 403  a key without the right
    ├── NotFound                  404  no such path or model
    ├── MethodNotAllowed          405
    ├── RequestTimeout            408  the body stopped coming
    ├── Conflict                  409  somebody else works on the same thing; `code` says how
    ├── BodyTooLarge              413
    ├── UnsupportedMediaType      415
    ├── TooManyRequests           429  as much of the tenant's waits as may; try again
    ├── ClientGone                499  nobody is left to read the answer
    ├── InternalError             500  ours, never the client's
    ├── EngineUnavailable         503  loading, being replaced, or draining; try again
    ├── EngineOverloaded          503  the request did not begin in time; try again
    └── StoreUnavailable          503  the database does not answer; try again

It owns the error object of the protocol. A message never quotes what a client wrote in its messages.
"""

import math
from typing import ClassVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from engine.errors import EngineDied, EngineError, EngineStopping, QueueFull, RequestRefused, WaitedTooLong
from gateway.record import record_of

__all__ = [
    "BodyTooLarge",
    "ClientGone",
    "Conflict",
    "ContextTooLong",
    "EngineOverloaded",
    "EngineUnavailable",
    "Forbidden",
    "GatewayError",
    "InternalError",
    "InvalidRequest",
    "MethodNotAllowed",
    "NotFound",
    "RequestTimeout",
    "StoreUnavailable",
    "TooManyRequests",
    "Unauthorized",
    "UnsupportedMediaType",
    "error_body",
    "error_response",
    "exception_handlers",
    "from_engine",
]


class GatewayError(Exception):
    """A failure that has a status and an error object."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.headers: dict[str, str] = {}


class InvalidRequest(GatewayError):
    status = 400
    type = "invalid_request_error"


class ContextTooLong(InvalidRequest):
    default_code = "context_length_exceeded"


class Unauthorized(GatewayError):
    status = 401
    type = "invalid_request_error"
    default_code = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers["www-authenticate"] = "Bearer"


class Forbidden(GatewayError):
    status = 403
    type = "permission_error"
    default_code = "insufficient_permissions"


class NotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class RequestTimeout(GatewayError):
    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"


class Conflict(GatewayError):
    status = 409
    type = "invalid_request_error"
    default_code = "session_conflict"


class BodyTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    default_code = "body_too_large"


class UnsupportedMediaType(GatewayError):
    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"


class TooManyRequests(GatewayError):
    status = 429
    type = "requests"  # the protocol's word for which limit it was
    default_code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.headers["retry-after"] = _whole_seconds(retry_after_seconds)


class ClientGone(GatewayError):
    status = 499
    type = "invalid_request_error"
    default_code = "client_closed_request"


class InternalError(GatewayError):
    default_code = "internal_error"


class EngineUnavailable(GatewayError):
    status = 503
    default_code = "engine_unavailable"

    def __init__(self, message: str, *, retry_after_seconds: int = 2) -> None:
        super().__init__(message)
        self.headers["retry-after"] = str(retry_after_seconds)


class EngineOverloaded(GatewayError):
    status = 503
    default_code = "engine_overloaded"

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.headers["retry-after"] = _whole_seconds(retry_after_seconds)


class StoreUnavailable(GatewayError):
    status = 503
    default_code = "store_unavailable"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers["retry-after"] = "2"


def _whole_seconds(seconds: float) -> str:
    return str(max(1, math.ceil(seconds)))


def from_engine(error: EngineError) -> GatewayError:
    """The gateway's word for an engine's failure."""
    match error:
        case RequestRefused():
            return InvalidRequest(str(error), code="request_refused")
        case QueueFull():
            return TooManyRequests(
                "Too many of your requests wait already; send this one again when some of them have ended.",
                retry_after_seconds=error.retry_after,
            )
        case WaitedTooLong():
            return EngineOverloaded(
                "The request waited as long as requests may and did not begin; send it again later.",
                retry_after_seconds=error.retry_after,
            )
        case EngineStopping():
            return EngineUnavailable("The server is shutting down; send the request again later.")
        case EngineDied():
            return EngineUnavailable(
                "The engine ended while it ran this request. A new one is being started; send it again."
            )
        case _:
            return InternalError("The engine failed while it ran this request.")


def error_body(error: GatewayError) -> bytes:
    """The protocol's error object, as JSON."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def error_response(error: GatewayError) -> Response:
    """The response that tells a client of the failure."""
    return Response(
        error_body(error), status_code=error.status, headers=error.headers, media_type="application/json"
    )


async def _on_gateway_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error_response(error)


async def _on_engine_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return error_response(from_engine(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What Starlette's router raises for paths and methods that it does not know."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refused: GatewayError = MethodNotAllowed(
            "This path does not serve this method; see the Allow header."
        )
        refused.headers.update(error.headers or {})
        return error_response(refused)
    if error.status_code == 404:
        return error_response(NotFound("There is nothing at this path. GET / lists what is served."))
    return error_response(InternalError("The request could not be served."))


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return error_response(ClientGone("The client closed the connection."))


async def _on_anything_else(request: Request, _error: Exception) -> Response:
    """Starlette answers here outside every layer of ours, so the id is set here too."""
    failure = InternalError("Something failed inside the server. Its log has this request's x-request-id.")
    failure.headers["x-request-id"] = record_of(request).request_id
    return error_response(failure)


exception_handlers: dict[int | type[Exception], ExceptionHandler] = {
    GatewayError: _on_gateway_error,
    EngineError: _on_engine_error,
    HTTPException: _on_http_exception,
    ClientDisconnect: _on_disconnect,
    Exception: _on_anything_else,
}
