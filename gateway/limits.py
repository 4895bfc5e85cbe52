"""How large a request may be, and how long its body may pause.

The limit holds whether or not a client announces a length: bytes are counted as they come in. Nothing is
read of a body that announces too much, and one that stops coming is given up.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import BodyTooLarge, RequestTimeout, error_response

__all__ = ["BodyLimit"]


class BodyLimit:
    """Middleware: answers 413 to a body that is too large, and 408 to one that stops coming."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_pause_seconds: float = 30.0) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.max_pause_seconds = max_pause_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._announced(scope) > self.max_bytes:
            await error_response(self._too_large())(scope, receive, send)
            return
        num_received = 0
        is_complete = False

        async def counted() -> Message:
            nonlocal num_received, is_complete
            message = await receive() if is_complete else await self._soon(receive)
            is_complete = not message.get("more_body", False)
            num_received += len(message.get("body", b""))
            if num_received > self.max_bytes:
                raise self._too_large()
            return message

        await self.app(scope, counted, send)

    async def _soon(self, receive: Receive) -> Message:
        """The next part of the body. Raises RequestTimeout when it does not come."""
        try:
            async with asyncio.timeout(self.max_pause_seconds):
                return await receive()
        except TimeoutError:
            raise RequestTimeout(
                f"No byte of the body came for {self.max_pause_seconds:g} seconds; send the request again."
            ) from None

    def _announced(self, scope: Scope) -> int:
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        return int(length) if length.isdigit() and len(length) < 20 else 0

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"The body is larger than the {self.max_bytes:,} bytes that are allowed; send less text."
        )
