"""Servers that the tests of clients start: on loopback, waited for, and ended by their pid."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

REPOSITORY = Path(__file__).parents[2]
SERVER_PYTHON = os.environ.get("SERVER_PYTHON", str(REPOSITORY / ".venv/bin/python"))
MODEL = Path(os.environ.get("STEMMA_TEST_MODEL", REPOSITORY / "data/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
END_SECONDS = 40


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    url: str  # without /v1
    log: Path

    @property
    def base_url(self) -> str:
        """What an SDK is pointed at."""
        return f"{self.url}/v1"


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def gateway(folder: Path, **settings: str) -> Iterator[Served]:
    """`stemma serve` with the default model in float32. Settings are environment variables."""
    assert MODEL.is_file(), f"{MODEL} is missing: run `make pull DATA=data`"
    port = free_port()
    arguments = ["serve", "--port", str(port), "--data", str(folder), "--model", str(MODEL)]
    environment = {
        "PYTHONPATH": str(REPOSITORY),  # the engine's process, too, is of this tree
        "STEMMA_MODEL__NAME": "default",
        "STEMMA_ENGINE__DTYPE": "float32",
        "STEMMA_ENGINE__KV_BYTES": "256MiB",
    }
    command = [SERVER_PYTHON, "-m", "gateway", *arguments]
    with running(command, environment | settings, port, "/health", folder / "gateway.log") as served:
        yield served


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    port: int,
    health: str,
    log: Path,
    ready_seconds: float = 120,
) -> Iterator[Served]:
    """Start a server, wait until its path `health` answers 200, and end it with SIGTERM."""
    served = Served(f"http://127.0.0.1:{port}", log)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_ready(process, served.url + health, log, ready_seconds)
        yield served
    finally:
        _end(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, f"ended with code {process.returncode}:\n{_tail(log)}"
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.2)
    raise AssertionError(f"not ready after {seconds} s:\n{_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]
