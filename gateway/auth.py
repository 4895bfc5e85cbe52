"""Who is asking: static API keys, each naming its tenant.

Keys are kept and compared as digests, so neither the time of a comparison nor a dump of memory tells a key.
With no keys configured everybody is the tenant "default", and an administrator. The check runs before the
body is read, and on the path as it came: whatever lies under /admin is for administrators alone, also where
nothing is served.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Forbidden, GatewayError, Unauthorized, error_response
from gateway.setting_sections import ApiKey

__all__ = ["Authenticate", "Keyring", "Principal", "principal_of"]

_OPEN_PATHS = frozenset({"/", "/health", "/ping"})
_METRICS_PATHS = frozenset({"/metrics", "/admin/metrics"})
_MAX_HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant, and what its key may do."""

    tenant: str
    may_read_metrics: bool
    is_admin: bool


EVERYBODY = Principal("default", may_read_metrics=True, is_admin=True)


class Keyring:
    """The keys that open the door. Holds digests only."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._principals = [
            (
                _digest(key.key.get_secret_value().encode()),
                Principal(key.tenant, may_read_metrics=key.metrics or key.admin, is_admin=key.admin),
            )
            for key in keys
        ]

    def principal(self, authorization: bytes | None) -> Principal:
        """Whose request it is, by its Authorization header. Raises Unauthorized."""
        if not self._principals:
            return EVERYBODY
        if authorization is None:
            raise Unauthorized("No API key: send the header authorization: Bearer KEY.")
        scheme, _, key = authorization[:_MAX_HEADER_BYTES].partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise Unauthorized("The authorization header must be: Bearer KEY.")
        found = self._find(_digest(key.strip()))
        if found is None:
            raise Unauthorized("This API key is not known here.")
        return found

    def _find(self, digest: bytes) -> Principal | None:
        found = None
        for known, principal in self._principals:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


class Authenticate:
    """Middleware: puts the principal into the request's state, or answers 401 or 403."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self.app = app
        self.keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["principal"] = self._admit(scope)
        except GatewayError as error:
            await error_response(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope) -> Principal:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        principal = self.keyring.principal(header)
        if not _may_go_to(scope["path"], principal):
            raise Forbidden("This API key may not use this path; it needs a key with more rights.")
        return principal


def principal_of(request: Request) -> Principal:
    """Who sent this request."""
    principal = request.state.principal
    assert isinstance(principal, Principal)
    return principal


def _may_go_to(path: str, principal: Principal) -> bool:
    if path in _METRICS_PATHS:
        return principal.may_read_metrics
    return principal.is_admin or not path.lstrip("/").lower().startswith("admin")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
