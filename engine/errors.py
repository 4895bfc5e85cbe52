"""What can go wrong with a request inside the engine.

EngineError
├── RequestRefused   the request can never run here: too long, or malformed
├── EngineDied       the engine's process ended while the request ran; a new one is being started
└── EngineStopping   the engine is draining and takes no new requests
"""

__all__ = ["EngineDied", "EngineError", "EngineStopping", "RequestRefused"]


class EngineError(Exception):
    """Any failure that the engine reports about one request."""


class RequestRefused(EngineError):
    """The request can never run: it exceeds the context or the pool, or its values are out of range."""


class EngineDied(EngineError):
    """The engine ended in the middle of the request. Whatever was not sent is lost."""


class EngineStopping(EngineError):
    """The engine is shutting down and admits nothing new."""
