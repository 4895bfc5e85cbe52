"""The collaborators of the routes, made once by whoever starts the server and passed in.

It owns none of them; nothing here is created or closed by this module.
"""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from engine.client import Engine
from gateway.catalog import Catalog
from gateway.conversation.prompt import Prompts
from gateway.errors import EngineUnavailable
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.namespaces import Namespaces
from gateway.store.usage import UsageLog

__all__ = ["Services"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a request may need."""

    engine: Engine
    prompts: Prompts
    catalog: Catalog
    namespaces: Namespaces
    metrics: Metrics
    usage: UsageLog
    lifecycle: Lifecycle

    @property
    def database(self) -> AsyncEngine:
        """Where usage, sessions and shared prefixes are kept."""
        return self.usage.database

    def require_engine(self) -> None:
        """Raise EngineUnavailable while there is no engine to ask."""
        if not self.engine.is_ready:
            raise EngineUnavailable("The model is not ready yet. Send the request again in a moment.")
