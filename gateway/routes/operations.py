"""What operators and their machines ask: /health, /ping, /version, metrics, and / for who comes by.

None of them waits for the engine: a scrape without an answer in time shows the gateway's own figures alone.
"""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.errors import EngineError
from engine.messages import EngineStats
from gateway.metrics import CONTENT_TYPE
from gateway.services import Services

__all__ = ["OperationsRoute"]

_STATS_SECONDS = 2.0
_ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /v1/models/{id}",
    "POST /v1/sessions",
    "GET /v1/sessions",
    "GET /v1/sessions/{id}",
    "DELETE /v1/sessions/{id}",
    "GET /v1/sessions/{id}/messages",
    "POST /v1/sessions/{id}/park",
    "POST /v1/sessions/{id}/resume",
    "POST /v1/sessions/{id}/fork",
    "POST /v1/sessions/{id}/pin",
    "DELETE /v1/sessions/{id}/pin",
    "POST /v1/chat/completions/render",
    "POST /tokenize",
    "POST /detokenize",
    "GET /version",
    "GET /ping",
    "GET /health",
    "GET /metrics",
    "GET /admin/metrics",
    "GET /admin/cache",
    "GET /admin/cache/events",
    "GET /admin/requests",
    "GET /admin/warnings",
    "POST /admin/prefixes",
    "GET /admin/prefixes",
    "DELETE /admin/prefixes/{id}",
)


class OperationsRoute:
    """The endpoints, with their collaborators."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def index(self, _request: Request) -> Response:
        """What is served here."""
        return JSONResponse(
            {
                "name": "stemma",
                "version": self.services.catalog.version,
                "models": self.services.catalog.names,
                "endpoints": _ENDPOINTS,
            }
        )

    async def health(self, _request: Request) -> Response:
        """200 when requests are served, 503 with a reason otherwise."""
        if self.services.lifecycle.is_draining:
            status = "draining"
        else:
            status = "ok" if self.services.engine.is_ready else "loading"
        if status == "ok":
            return JSONResponse({"status": status})
        return JSONResponse({"status": status}, status_code=503, headers={"retry-after": "2"})

    async def version(self, _request: Request) -> Response:
        """Which server this is."""
        return JSONResponse({"version": self.services.catalog.version})

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
