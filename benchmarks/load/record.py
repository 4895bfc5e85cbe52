"""What one request told: its times and counts, as plain values."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Failure", "Record"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no whole answer."""

    kind: str  # what is counted: "HTTP 429", "timeout", ...
    detail: str  # what the server or the system said, cut short


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Times are seconds since the run began, by one clock."""

    conversation: int
    turn: int  # 0 is a conversation's first
    planned: float  # when it should have been sent
    sent: float
    arrivals: tuple[float, ...]  # of each event that brought text
    ended: float
    num_asked_tokens: int
    num_tokens: int  # answered: from usage, else one an event
    num_prompt_tokens: int
    num_cached_tokens: int | None  # None where usage does not tell
    tells_tokens: bool = True  # whether `num_tokens` is from usage
    failure: Failure | None = None

    @property
    def first_token(self) -> float | None:
        """Seconds from sending to the first text; None where no event brought any."""
        return self.arrivals[0] - self.sent if self.arrivals else None

    @property
    def end_to_end(self) -> float:
        """Seconds from sending to the end of the answer."""
        return self.ended - self.sent

    @property
    def per_token(self) -> float | None:
        """Mean seconds a token after the first one; None with fewer than two tokens or events."""
        if len(self.arrivals) < 2 or self.num_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.num_tokens - 1)

    @property
    def normalized_latency(self) -> float | None:
        """End-to-end seconds over tokens answered, as in the PagedAttention paper; None without a token."""
        return self.end_to_end / self.num_tokens if self.num_tokens else None

    @property
    def gaps(self) -> Iterator[float]:
        """Seconds between one event that brought text and the next; an event may hold several tokens."""
        return (later - earlier for earlier, later in pairwise(self.arrivals))
