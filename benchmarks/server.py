"""A `stemma serve` of one's own for a bench: on a free port, over a data folder of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = ["Server", "serve"]

_READY_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.process.wait()


@contextmanager
def serve(model: str, data: Path, **settings: str) -> Iterator[Server]:
    """Serve a model until the block ends. Settings are environment variables without their prefix."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["serve", "--port", str(port), "--data", str(data), "--model", model]
    environment = os.environ | {f"STEMMA_{name}": value for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(data / "serve.log").open("ab"),
    )
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"stemma serve ended with code {server.process.returncode}: see serve.log")
        try:
            if httpx.get(f"{server.url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.05)
    raise TimeoutError(f"not ready after {_READY_SECONDS} s")
