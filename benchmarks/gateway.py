"""What the gateway alone costs: a bare engine says tokens at once, and a lean client counts them.

Three processes: the gateway, on a core of its own; the engine; and this one, the client. What it costs is the
gateway's time on its core for 1,000 streamed tokens or 1,000 short requests, which tells its limit also where
the client, or the pace of the engine, is the one that was reached. With `--step-ms 0` the tokens of a stream
gather, and several go out in one write; `per_read` says how many came in one read of the client's.

    stemma bench gateway --model data/models/NAME.gguf --streams 128
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.alone.client import Counts, Load, post
from benchmarks.alone.engine import HELD_TOKENS, Plan
from benchmarks.alone.served import MODEL_NAME
from benchmarks.flags import amount, positive, rate
from benchmarks.program import run
from gateway.conversation.model_text import load_model_text

__all__ = ["Kind", "Served", "main", "measure_held", "measure_load", "serve"]

CHAT = "/v1/chat/completions"
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the warm sun of the afternoon."
_SHORT_TOKENS = 4
_WARM_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0
_LEAVING_SECONDS = 2.0  # until the server has let go of clients that left
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked for: streams or whole answers; and for how long."""

    streams: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway that runs."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """Of all its threads since its start."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_mib(self) -> float:
        """Memory that it has in use."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


@contextmanager
def serve(model: Path, step_seconds: float) -> Iterator[Served]:
    """A bare engine and the gateway over it, until the block ends. The gateway has the first core for itself,
    if there are several.
    """
    own, *others = cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(others or [own]))
    try:
        with _served(model, step_seconds, own) as served:
            yield served
    finally:
        os.sched_setaffinity(0, set(cores))


@contextmanager
def _served(model: Path, step_seconds: float, core: int) -> Iterator[Served]:
    text = load_model_text(model).tokenizer
    plan = Plan(token_ids=text.encode(TEXT), vocab_size=text.vocab_size, step_seconds=step_seconds)
    with tempfile.TemporaryDirectory(prefix="stemma-") as folder:
        address = f"ipc://{folder}/engine.sock"
        with _child("engine", address, stdin=subprocess.PIPE) as engine:
            assert engine.stdin is not None
            engine.stdin.write(msgspec.json.encode(plan) + b"\n")
            engine.stdin.flush()
            with _child("served", address, str(model), folder, str(core), stdout=subprocess.PIPE) as gateway:
                assert gateway.stdout is not None
                line = gateway.stdout.readline()
                if not line:
                    raise RuntimeError("the gateway did not start")
                yield Served(gateway.pid, int(line))


@contextmanager
def _child(name: str, *arguments: str, **pipes: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-P", "-m", f"benchmarks.alone.{name}", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **pipes)  # type: ignore[call-overload]
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


async def measure_load(served: Served, request: bytes, num_connections: int, kind: Kind) -> dict[str, Any]:
    """Ask on so many connections at once, for as long as `kind` says."""
    warm = time.monotonic() + _WARM_SECONDS
    await _ask(served, request, num_connections, kind, warm)
    started, before = time.monotonic(), served.cpu_seconds()
    counts = await _ask(served, request, num_connections, kind, started + kind.seconds)
    wall, busy = time.monotonic() - started, served.cpu_seconds() - before
    num = counts.num_tokens if kind.streams else counts.num_answers
    return {
        "per_second": round(num / wall),
        "cpu_ms_per_1000": round(busy / num * 1e6, 1),
        "per_cpu_second": round(num / busy),
        "busy": round(busy / wall, 3),
        "per_read": round(num / counts.num_reads, 2),
        "resident_mib": served.resident_mib(),
    }


async def _ask(served: Served, request: bytes, num_connections: int, kind: Kind, until: float) -> Counts:
    load = Load(served.port, request, lambda: time.monotonic() < until)
    await load.open(num_connections, streams=kind.streams)
    return await load.finish()


async def measure_held(served: Served, numbers: Sequence[int]) -> dict[str, float]:
    """MiB of memory with so many streams open at once, and after they have left."""
    load = Load(served.port, _request(HELD_TOKENS, stream=True), lambda: False)
    memory = {"0": served.resident_mib()}
    num_open = 0
    for number in numbers:
        await load.open(number - num_open, streams=True)
        num_open = number
        await asyncio.wait_for(load.has_heard(number), _PATIENCE_SECONDS)
        memory[str(number)] = served.resident_mib()
    load.close()
    await asyncio.sleep(_LEAVING_SECONDS)
    return memory | {"after": served.resident_mib()}


def _request(num_tokens: int, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": "Hello! How are you?"}]
    return post(CHAT, {"model": MODEL_NAME, "messages": messages, "max_tokens": num_tokens, "stream": stream})


async def measure(served: Served, options: argparse.Namespace) -> None:
    """Print a line of JSON a measurement."""
    request = _request(options.tokens, stream=True)
    for number in options.streams:
        figures = await measure_load(served, request, number, Kind(streams=True, seconds=options.seconds))
        print(json.dumps({"streams": number, **figures}), flush=True)
    request = _request(_SHORT_TOKENS, stream=False)
    for number in options.clients:
        figures = await measure_load(served, request, number, Kind(streams=False, seconds=options.seconds))
        print(json.dumps({"clients": number, **figures}), flush=True)
    for _ in range(2 if options.held else 0):  # what the second time adds would go on growing
        print(json.dumps({"held_mib": await measure_held(served, sorted(options.held))}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stemma bench gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="whose tokenizer and template are used")
    parser.add_argument("--streams", type=positive, nargs="*", default=[32, 128, 256], help="at once")
    parser.add_argument(
        "--clients", type=positive, nargs="*", default=[32], help="that send short requests, at once"
    )
    parser.add_argument("--held", type=positive, nargs="*", default=[500, 1000, 2000], help="open streams")
    parser.add_argument("--tokens", type=positive, default=64, help="of a streamed answer")
    parser.add_argument("--step-ms", type=amount, default=0.0, help="between two tokens of a stream")
    parser.add_argument("--seconds", type=rate, default=5.0, help="of each measurement")
    return parser.parse_args()


def main() -> None:
    """Measure."""
    options = _options()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with serve(options.model, options.step_ms / 1000) as served:
        asyncio.run(measure(served, options))


if __name__ == "__main__":
    run(main)
