"""GET /openapi.json and /docs: what is served, for machines and for readers."""

from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.description.document import describe
from gateway.description.operations import OPERATIONS
from gateway.description.page import as_page
from gateway.services import Services

__all__ = ["DescriptionRoute"]


class DescriptionRoute:
    """The endpoints. The documents are made when somebody first asks."""

    def __init__(self, services: Services) -> None:
        self._catalog = services.catalog

    async def document(self, _request: Request) -> Response:
        """OpenAPI."""
        return Response(self._encoded, media_type="application/json")

    async def page(self, _request: Request) -> Response:
        """HTML."""
        return HTMLResponse(self._page)

    @cached_property
    def _encoded(self) -> bytes:
        return msgspec.json.encode(self._document)

    @cached_property
    def _page(self) -> str:
        return as_page(self._document)

    @property
    def _document(self) -> dict[str, Any]:
        return describe(OPERATIONS, version=self._catalog.version, models=self._catalog.names)
