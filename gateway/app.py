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
from gateway.briefings import Briefings
from gateway.errors import exception_handlers
from gateway.events import Pace
from gateway.intake import Intake
from gateway.journal import Journal
from gateway.limits import BodyLimit
from gateway.observe import Observe
from gateway.prefixes import SharedPrefixes
from gateway.prompt_caching import PromptCaching
from gateway.reading import Readings
from gateway.rendering import ChatRenderer
from gateway.routes.admin import AdminRoute
from gateway.routes.chat import ChatRoute
from gateway.routes.completions import CompletionsRoute
from gateway.routes.description import DescriptionRoute
from gateway.routes.models import ModelsRoute
from gateway.routes.operations import OperationsRoute
from gateway.routes.sessions import SessionsRoute
from gateway.routes.tokens import TokensRoute
from gateway.services import Services
from gateway.sessions.service import Sessions
from gateway.settings import Settings

__all__ = ["build_app", "build_prefixes"]


def build_app(settings: Settings, services: Services, prefixes: SharedPrefixes | None = None) -> Starlette:
    """The ASGI application. `prefixes` are given where something beside it keeps them."""
    journal = Journal()
    app = Starlette(
        routes=_routes(settings, services, journal, prefixes or build_prefixes(services)),
        middleware=_layers(settings, services, journal),
        exception_handlers=exception_handlers,
    )
    # a path with a slash too many is not found; a redirect would lose a POST's body in some clients
    app.router.redirect_slashes = False
    return app


def build_prefixes(services: Services) -> SharedPrefixes:
    """The shared prefixes of a server, and the renderer that it has once."""
    return SharedPrefixes(services, ChatRenderer(services.prompts))


def _routes(
    settings: Settings, services: Services, journal: Journal, prefixes: SharedPrefixes
) -> list[Route]:
    renderer = prefixes.renderer
    sessions = Sessions(services, renderer, settings.conversation)
    server = settings.server
    pace = Pace(ping_seconds=server.ping_seconds, send_timeout_seconds=server.send_timeout_seconds)
    intake = Intake(services, keeps_trace=settings.database.prefix_trace)
    caching = PromptCaching(services)
    readings = Readings(services.prompts)
    briefings = Briefings(services.prompts.template_asks, readings)
    chat = ChatRoute(
        services,
        intake=intake,
        renderer=renderer,
        sessions=sessions,
        journal=journal,
        pace=pace,
        caching=caching,
        readings=readings,
        briefings=briefings,
    )
    completions = CompletionsRoute(
        services, intake=intake, pace=pace, caching=caching, max_waiting=settings.engine.max_waiting
    )
    admin = AdminRoute(services, prefixes=prefixes, journal=journal, pace=pace)
    models = ModelsRoute(services)
    operations = OperationsRoute(services)
    tokens = TokensRoute(services, renderer, briefings)
    description = DescriptionRoute(services)
    return [
        Route("/v1/chat/completions", chat.create, methods=["POST"]),
        Route("/v1/chat/completions/render", chat.render, methods=["POST"]),
        Route("/v1/completions", completions.create, methods=["POST"]),
        *_session_routes(SessionsRoute(services, sessions)),
        *_admin_routes(admin),
        Route("/v1/models", models.list),
        Route("/v1/models/{model:path}", models.retrieve),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/version", operations.version),
        Route("/ping", operations.health),
        Route("/health", operations.health),
        Route("/metrics", operations.metrics),
        Route("/admin/metrics", operations.admin_metrics),
        Route("/openapi.json", description.document),
        Route("/docs", description.page),
        Route("/", operations.index),
    ]


def _session_routes(sessions: SessionsRoute) -> list[Route]:
    one = "/v1/sessions/{session_id}"
    return [
        Route("/v1/sessions", sessions.create, methods=["POST"]),
        Route("/v1/sessions", sessions.list),
        Route(one, sessions.retrieve),
        Route(one, sessions.delete, methods=["DELETE"]),
        Route(f"{one}/messages", sessions.messages),
        Route(f"{one}/park", sessions.park, methods=["POST"]),
        Route(f"{one}/resume", sessions.resume, methods=["POST"]),
        Route(f"{one}/fork", sessions.fork, methods=["POST"]),
        Route(f"{one}/pin", sessions.pin, methods=["POST"]),
        Route(f"{one}/pin", sessions.unpin, methods=["DELETE"]),
    ]


def _admin_routes(admin: AdminRoute) -> list[Route]:
    return [
        Route("/admin/cache", admin.cache),
        Route("/admin/cache/events", admin.events),
        Route("/admin/requests", admin.requests),
        Route("/admin/warnings", admin.warnings),
        Route("/admin/prefixes", admin.create_prefix, methods=["POST"]),
        Route("/admin/prefixes", admin.list_prefixes),
        Route("/admin/prefixes/{prefix_id}", admin.delete_prefix, methods=["DELETE"]),
    ]


def _layers(settings: Settings, services: Services, journal: Journal) -> list[Middleware]:
    return [
        Middleware(
            Observe,
            metrics=services.metrics,
            usage=services.usage,
            lifecycle=services.lifecycle,
            journal=journal,
        ),
        Middleware(
            CORSMiddleware,
            allow_origins=settings.server.cors_origins,
            allow_methods=["DELETE", "GET", "POST"],
            allow_headers=["*"],
            expose_headers=["openai-processing-ms", "x-request-id"],
        ),
        Middleware(Authenticate, keyring=Keyring(settings.keys)),
        Middleware(BodyLimit, max_bytes=settings.server.max_body_bytes),
    ]
