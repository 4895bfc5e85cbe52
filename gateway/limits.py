"""How large a request may be.

The limit holds whether or not a client announces a length: bytes are counted as they come in. Nothing is
read of a body that announces too much.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import BodyTooLarge, error_response

__all__ = ["BodyLimit"]


class BodyLimit:
    """Middleware: answers 413 to a body that is too large."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._announced(scope) > self.max_bytes:
            await error_response(self._too_large())(scope, receive, send)
            return
        num_received = 0

        async def counted() -> Message:
            nonlocal num_received
            message = await receive()
            num_received += len(message.get("body", b""))
            if num_received > self.max_bytes:
                raise self._too_large()
            return message

        await self.app(scope, counted, send)

    def _announced(self, scope: Scope) -> int:
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        return int(length) if length.isdigit() and len(length) < 20 else 0

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"The body is larger than the {self.max_bytes:,} bytes that are allowed; send less text."
        )
