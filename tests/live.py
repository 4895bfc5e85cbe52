"""A real server on a real port, in a thread, for as long as a test needs it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from engine.client import Engine
from gateway.app import build_app
from gateway.catalog import Catalog
from gateway.conversation.prompt import Prompts
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.namespaces import Namespaces
from gateway.services import Services
from gateway.serving import bind
from gateway.settings import Settings
from gateway.store.database import open_database
from gateway.store.usage import UsageLog

__all__ = ["LiveServer", "live_server", "scripted_services"]


@dataclass(frozen=True, slots=True)
class LiveServer:
    """Where it listens, and what stands behind it."""

    url: str
    services: Services


@dataclass(slots=True, eq=False)
class _Thread:
    server: uvicorn.Server
    listener: socket.socket = field(default_factory=lambda: bind("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.listener]))


def scripted_services(engine: Engine, prompts: Prompts) -> Services:
    """Services around an engine, with a usage log that nobody writes out."""
    metrics = Metrics()
    return Services(
        engine=engine,
        prompts=prompts,
        catalog=Catalog(name="scripted", aliases=("gpt-4o",), created=1_700_000_000, version="0"),
        namespaces=Namespaces(b"s" * 32),
        metrics=metrics,
        usage=UsageLog(open_database("sqlite+aiosqlite://"), metrics.usage_dropped),
        lifecycle=Lifecycle(),
    )


@contextmanager
def live_server(services: Services, settings: Settings) -> Iterator[LiveServer]:
    """Serve until the block ends. Connections still open then are cut."""
    app = build_app(settings, services)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    thread = _Thread(uvicorn.Server(config))
    runner = threading.Thread(target=thread.run, daemon=True)
    runner.start()
    try:
        yield LiveServer(thread.url, services)
    finally:
        thread.server.should_exit = True
        runner.join(timeout=10)
        assert not runner.is_alive(), "the server did not stop"
