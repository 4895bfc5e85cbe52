"""Whether the server takes new work, and how much it still has.

    serving → draining      on the first signal; there is no way back

Shared by the server, which drains, and the routes, which refuse.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.errors import EngineUnavailable

__all__ = ["Lifecycle"]


@dataclass(slots=True, eq=False)
class Lifecycle:
    """One server's state."""

    is_draining: bool = False
    num_requests: int = 0  # being answered now

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request while it is answered."""
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    def require_serving(self) -> None:
        """Raise EngineUnavailable while draining."""
        if self.is_draining:
            raise EngineUnavailable(
                "The server is shutting down and takes no new requests.", retry_after_seconds=5
            )
