"""Bodies that are too large are told so by test_app; here, one that stops coming."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import RequestTimeout
from gateway.limits import BodyLimit

pytestmark = pytest.mark.anyio

SCOPE: Scope = {"type": "http", "headers": [(b"content-length", b"500")]}


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def nowhere(message: Message) -> None:
    raise AssertionError(f"nothing is sent here, but {message['type']} was")


async def read_body(_scope: Scope, receive: Receive, _send: Send) -> None:
    while (await receive()).get("more_body", False):
        pass


async def test_a_body_that_stops_coming_is_given_up() -> None:
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        return parts.pop() if parts else await never()

    with pytest.raises(RequestTimeout, match=r"0\.05 seconds"):
        async with asyncio.timeout(10):
            await BodyLimit(read_body, max_bytes=1000, max_pause_seconds=0.05)(SCOPE, receive, nowhere)


async def test_waiting_for_a_client_to_leave_has_no_limit() -> None:
    """After the body, what comes next is the client's departure, and that may take as long as the answer."""
    parts: list[Message] = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await asyncio.sleep(0.2)
        return {"type": "http.disconnect"}

    async def answer(_scope: Scope, receive: Receive, _send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"

    await BodyLimit(answer, max_bytes=1000, max_pause_seconds=0.05)(SCOPE, receive, nowhere)
