"""The gateway as `stemma serve` wires it, over an engine that somebody else has started.

python -m benchmarks.alone.served ADDRESS MODEL DATA CORE     (says its port; ends on SIGTERM)
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from engine.connection import EngineConnection
from gateway.app import build_app
from gateway.catalog import Catalog
from gateway.conversation.prompt import load_prompts
from gateway.lifecycle import Lifecycle
from gateway.logs import configure_logs
from gateway.metrics import Metrics
from gateway.namespaces import Namespaces
from gateway.services import Services
from gateway.serving import DrainingServer, bind, run, settle_heap
from gateway.settings import Settings
from gateway.store.database import open_database
from gateway.store.migrate import upgrade
from gateway.store.usage import UsageLog

__all__ = ["MODEL_NAME"]

MODEL_NAME = "bench"


async def _serve(address: str, model: Path, settings: Settings) -> None:
    metrics = Metrics()
    database = open_database(settings.database_url)
    usage = UsageLog(database, metrics.usage_dropped)
    writer = asyncio.create_task(usage.run())
    engine = EngineConnection(address)
    await engine.ready()
    services = Services(
        engine=engine,
        prompts=load_prompts(model),
        catalog=Catalog(name=MODEL_NAME, aliases=(), created=int(time.time()), version="0"),
        namespaces=Namespaces(b"b" * 32),
        metrics=metrics,
        usage=usage,
        lifecycle=Lifecycle(),
    )
    server = DrainingServer(
        build_app(settings, services), services.lifecycle, drain_seconds=1.0, cut=engine.close
    )
    settle_heap()
    listener = bind("127.0.0.1", 0)
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])
    await engine.close()
    usage.stop()
    await writer
    await database.dispose()


def main() -> None:
    """Serve until a signal."""
    address, model, data, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    settings = Settings(data=Path(data))
    configure_logs("json")
    upgrade(settings.database_url)
    run(_serve(address, Path(model), settings))


if __name__ == "__main__":
    main()
