"""The asynchronous face of the engine: what the gateway holds."""

from collections.abc import AsyncGenerator
from typing import Protocol

from engine.messages import EngineInfo, EngineStats, Submit, TokenEvent

__all__ = ["Engine"]


class Engine(Protocol):
    """An engine, wherever it runs."""

    @property
    def info(self) -> EngineInfo:
        """What the engine turned out to be. Only after it has been ready once."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether requests are served now: not while the model loads or a dead engine is replaced."""
        ...

    def generate(self, submit: Submit) -> AsyncGenerator[TokenEvent]:
        """Run a request and yield its events until every choice has its finish_reason.

        Closing the generator early, or cancelling the task that reads it, aborts what still runs. Raises
        RequestRefused, EngineStopping or EngineDied.
        """
        ...

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request, or one choice of it, soon. No further event of it need be expected."""
        ...

    async def stats(self) -> EngineStats:
        """The engine's figures. Raises EngineDied if it ends before it answers."""
        ...
