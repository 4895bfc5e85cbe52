"""The whole gateway, wired on one page: routes, and the layers around them, outermost first.

    Observe        the request's id, log line, metrics, usage
    CORS           answers browsers' preflights before anybody asks for a key
    Authenticate   401 and 403, before a byte of the body is read
    BodyLimit      413

Everything is passed in; this module starts and stops nothing.
"""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from gateway.auth import Authenticate, Keyring
from gateway.errors import exception_handlers
from gateway.limits import BodyLimit
from gateway.observe import Observe
from gateway.routes.chat import ChatRoute
from gateway.routes.models import ModelsRoute
from gateway.routes.operations import OperationsRoute
from gateway.services import Services
from gateway.settings import Settings

__all__ = ["build_app"]


def build_app(settings: Settings, services: Services) -> Starlette:
    """The ASGI application."""
    app = Starlette(
        routes=_routes(settings, services),
        middleware=_layers(settings, services),
        exception_handlers=exception_handlers,
    )
    # a path with a slash too many is not found; a redirect would lose a POST's body in some clients
    app.router.redirect_slashes = False
    return app


def _routes(settings: Settings, services: Services) -> list[Route]:
    chat = ChatRoute(services, ping_seconds=settings.server.ping_seconds)
    models = ModelsRoute(services)
    operations = OperationsRoute(services)
    return [
        Route("/v1/chat/completions", chat.create, methods=["POST"]),
        Route("/v1/models", models.list),
        Route("/v1/models/{model:path}", models.retrieve),
        Route("/health", operations.health),
        Route("/metrics", operations.metrics),
        Route("/admin/metrics", operations.admin_metrics),
        Route("/", operations.index),
    ]


def _layers(settings: Settings, services: Services) -> list[Middleware]:
    return [
        Middleware(Observe, metrics=services.metrics, usage=services.usage, lifecycle=services.lifecycle),
        Middleware(
            CORSMiddleware,
            allow_origins=settings.server.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        ),
        Middleware(Authenticate, keyring=Keyring(settings.keys)),
        Middleware(BodyLimit, max_bytes=settings.server.max_body_bytes),
    ]
