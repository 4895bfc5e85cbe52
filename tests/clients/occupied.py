"""A narrow gateway made full: one endless answer that runs, and one request that waits behind it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from tests.clients.processes import Served

__all__ = ["Held", "occupied"]

ENDLESS = {
    "model": "default",
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 4000,
}


class Held:
    """Two requests that are in the way until they are let go."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def let_go(self) -> None:
        """Both clients leave. May be said twice."""
        self._stack.close()


@contextmanager
def occupied(narrow: Served, num_waiting: int = 1) -> Iterator[Held]:
    """The first request runs when this returns, and the others wait."""
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=narrow.base_url, timeout=60))
        lines = _ask(stack, client).iter_lines()  # named, for the client leaves when nobody holds it
        next(line for line in lines if '"content":"' in line and '"role"' not in line)
        for _ in range(num_waiting):
            _ask(stack, client)
        yield Held(stack)


def _ask(stack: ExitStack, client: httpx.Client) -> httpx.Response:
    """A stream whose headers are there: the engine has queued it."""
    response = stack.enter_context(client.stream("POST", "/chat/completions", json=ENDLESS))
    assert response.status_code == 200
    return response
