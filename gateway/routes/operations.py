"""What operators and their machines ask: /health, /ping, /version, metrics, and / for who comes by.

None of them waits for the engine: a scrape without an answer in time shows the gateway's own figures alone.
"""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import EngineError
from engine.messages import EngineStats
from gateway.description.operations import OPERATIONS
from gateway.metrics import CONTENT_TYPE
from gateway.routes.answers import json_response
from gateway.services import Services
from gateway.wire.operations_answers import Health, Index, Version

__all__ = ["OperationsRoute"]

_STATS_SECONDS = 2.0


class OperationsRoute:
    """The endpoints, with their collaborators."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def index(self, _request: Request) -> Response:
        """What is served here."""
        catalog = self.services.catalog
        return json_response(
            Index(
                name="stemma",
                version=catalog.version,
                models=catalog.names,
                endpoints=[operation.name for operation in OPERATIONS],
            )
        )

    async def health(self, _request: Request) -> Response:
        """200 when requests are served, 503 with a reason otherwise."""
        if self.services.lifecycle.is_draining:
            health = Health("draining")
        else:
            health = Health("ok" if self.services.engine.is_ready else "loading")
        response = json_response(health)
        if health.status != "ok":
            response.status_code = 503
            response.headers["retry-after"] = "2"
        return response

    async def version(self, _request: Request) -> Response:
        """Which server this is."""
        return json_response(Version(self.services.catalog.version))

    async def metrics(self, _request: Request) -> Response:
        """Prometheus' text format."""
        exposition = self.services.metrics.render(await self._engine_stats())
        return Response(exposition, headers={"content-type": CONTENT_TYPE})

    async def admin_metrics(self, _request: Request) -> Response:
        """The same figures as JSON."""
        samples = self.services.metrics.samples(await self._engine_stats())
        return Response(msgspec.json.encode({"samples": samples}), media_type="application/json")

    async def _engine_stats(self) -> EngineStats | None:
        if not self.services.engine.is_ready:
            return None
        try:
            async with asyncio.timeout(_STATS_SECONDS):
                return await self.services.engine.stats()
        except (EngineError, TimeoutError):
            return None
