"""What can go wrong with a request inside the engine.

EngineError
├── RequestRefused   the request can never run here: too long, or malformed
├── EngineBusy       it would run at another time
│   ├── QueueFull        its tenant has too much waiting already
│   └── WaitedTooLong    it waited as long as requests may, and did not begin
├── EngineDied       the engine's process ended while the request ran; a new one is being started
└── EngineStopping   the engine is draining and takes no new requests
"""

__all__ = [
    "EngineBusy",
    "EngineDied",
    "EngineError",
    "EngineStopping",
    "GrammarRefused",
    "QueueFull",
    "RequestRefused",
    "WaitedTooLong",
]


class EngineError(Exception):
    """Any failure that the engine reports about one request."""


class RequestRefused(EngineError):
    """The request can never run: it exceeds the context or the pool, or its values are out of range."""


class GrammarRefused(RequestRefused):
    """Its grammar cannot be followed, or no further than the answer has come."""


class EngineBusy(EngineError):
    """Nothing is wrong with the request but its time. `retry_after` in seconds is when to try again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(EngineBusy):
    """The tenant has as many requests, or as much of prompts, waiting as it may."""


class WaitedTooLong(EngineBusy):
    """The request did not begin within the time that requests may wait."""


class EngineDied(EngineError):
    """The engine ended in the middle of the request. Whatever was not sent is lost."""


class EngineStopping(EngineError):
    """The engine is shutting down and admits nothing new."""
