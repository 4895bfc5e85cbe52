"""GET /v1/models and /v1/models/{id}: the served name and its aliases, as if each were a model."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.routes.answers import json_response
from gateway.services import Services
from gateway.wire.models import Model, ModelList

__all__ = ["ModelsRoute"]


class ModelsRoute:
    """The endpoints, with their collaborators."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def list(self, _request: Request) -> Response:
        """Every name."""
        return json_response(ModelList(data=[self._model(name) for name in self.services.catalog.names]))

    async def retrieve(self, request: Request) -> Response:
        """One name; 404 when nobody has it."""
        name = request.path_params["model"]
        if not name:
            return await self.list(request)
        self.services.catalog.require(name)
        return json_response(self._model(name))

    def _model(self, name: str) -> Model:
        engine = self.services.engine
        limit = engine.info.max_request_tokens if engine.is_ready else None
        return Model(id=name, created=self.services.catalog.created, max_model_len=limit)
