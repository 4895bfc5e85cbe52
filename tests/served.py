"""The command `stemma serve` on the default model, for tests that only a real model can pass."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.serving import bind

__all__ = ["REPOSITORY", "ServedModel", "stemma_serve"]

READY_SECONDS = 120
REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A running `stemma serve`."""

    url: str  # without /v1
    process: subprocess.Popen[bytes]
    data: Path
    model: str = "default"


@contextmanager
def stemma_serve(model_path: Path, data: Path, **settings: str) -> Iterator[ServedModel]:
    """Start the command, wait until it is ready, end it with SIGTERM. Settings are environment variables."""
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    arguments = ["serve", "--port", str(port), "--data", str(data), "--model", str(model_path)]
    environment = os.environ | {"STEMMA_MODEL__NAME": "default"} | settings
    process = subprocess.Popen([sys.executable, "-m", "gateway", *arguments], env=environment, cwd=REPOSITORY)
    served = ServedModel(f"http://127.0.0.1:{port}", process, data)
    try:
        _wait_until_ready(served)
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=40)


def _wait_until_ready(served: ServedModel) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        assert served.process.poll() is None, f"stemma serve ended with code {served.process.returncode}"
        try:
            if httpx.get(f"{served.url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    raise AssertionError(f"not ready after {READY_SECONDS} s")
