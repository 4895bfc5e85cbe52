"""Starting a server: every collaborator is made here, in order, and closed in the opposite one.

    prompts, database, engine, shared prefixes, HTTP

The address was bound before, so a port in use costs no model. HTTP answers while the engine loads: 503
until it is ready. When this returns, nothing that it started is left.
"""

import asyncio
import importlib.metadata
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from engine.client import EngineProcess
from gateway.app import build_app, build_prefixes
from gateway.beside import beside
from gateway.catalog import Catalog
from gateway.conversation.prompt import Prompts, load_prompts
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.namespaces import Namespaces, load_secret
from gateway.prefixes import keep_prefixes
from gateway.reading import Readings
from gateway.services import Services
from gateway.serving import DrainingServer, settle_heap
from gateway.settings import Settings
from gateway.store.database import open_database
from gateway.store.usage import UsageLog

__all__ = ["CannotServe", "run_server", "version"]


class CannotServe(Exception):
    """A file that serving needs cannot be used; the message says which, and what is wrong with it."""


def version() -> str:
    """The version of the installed distribution."""
    return importlib.metadata.version("stemma-gateway")


async def run_server(settings: Settings, model_path: Path, listener: socket.socket) -> None:
    """Serve on a bound socket until a signal. Raises CannotServe, EngineError and WorkFailed."""
    prompts = _load_prompts(settings, model_path)
    namespaces = _load_namespaces(settings)
    vocabulary = prompts.vocabulary(Readings(prompts).marks)
    engine = EngineProcess(settings.engine_config(model_path, namespaces.account), vocabulary)
    async with _usage_log(settings, metrics := Metrics()) as usage:
        services = Services(
            engine=engine,
            prompts=prompts,
            catalog=_catalog(settings),
            namespaces=namespaces,
            metrics=metrics,
            usage=usage,
            lifecycle=Lifecycle(),
        )
        prefixes = build_prefixes(services)
        app = build_app(settings, services, prefixes)
        server = DrainingServer(
            app, services.lifecycle, drain_seconds=settings.server.drain_seconds, cut=engine.close
        )
        settle_heap()
        greeting = _greeting(settings, listener.getsockname()[1])
        async with (
            beside(keep_prefixes(services, prefixes), server.end),
            beside(_keep(engine, greeting), server.end),
        ):
            await server.serve(sockets=[listener])


def _load_prompts(settings: Settings, model_path: Path) -> Prompts:
    try:
        return load_prompts(model_path, transcript_bytes=settings.conversation.transcript_bytes)
    except (OSError, ValueError) as error:
        reason = str(error)
        raise CannotServe(reason if str(model_path) in reason else f"{model_path}: {reason}") from None


def _load_namespaces(settings: Settings) -> Namespaces:
    try:
        return Namespaces(load_secret(settings.data / "namespaces.key"))
    except (OSError, ValueError) as error:
        raise CannotServe(str(error)) from None


def _catalog(settings: Settings) -> Catalog:
    return Catalog(
        name=settings.model.served_name,
        aliases=settings.model.aliases,
        created=int(time.time()),
        version=version(),
    )


async def _keep(engine: EngineProcess, greeting: str) -> None:
    """Hold the engine until cancelled."""
    async with engine:
        print(greeting, flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def _usage_log(settings: Settings, metrics: Metrics) -> AsyncIterator[UsageLog]:
    """A log that is written for as long as it is used."""
    database = open_database(settings.database_url)
    usage = UsageLog(database, metrics.usage_dropped)
    writer = asyncio.create_task(usage.run())
    try:
        yield usage
    finally:
        usage.stop()
        await writer
        await database.dispose()


def _greeting(settings: Settings, port: int) -> str:
    """Where to knock, and a line that does."""
    host, model = settings.server.host, settings.model.served_name
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    key = ' -H "authorization: Bearer $STEMMA_KEY"' if settings.keys else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "max_tokens": 64}}'
    return (
        f"Stemma serves {model} at {url}\n\n"
        f"    curl {url}/chat/completions -H 'content-type: application/json'{key} \\\n"
        f"      -d '{body}'\n"
    )
