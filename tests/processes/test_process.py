"""The two processes: how they start and end, and that neither outlives the other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway.talk import CHAT, body, events_of
from tests.served import REPOSITORY, ServedModel, stemma_serve

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads children from /proc")
STORY = [{"role": "user", "content": "Tell me a long story."}]


@pytest.fixture
def served(default_model_path: Path, tmp_path: Path) -> Iterator[ServedModel]:
    # on a busy machine a stream takes its time to end
    settings = {"STEMMA_ENGINE__KV_BYTES": "64MiB", "STEMMA_SERVER__DRAIN_SECONDS": "120"}
    with stemma_serve(default_model_path, tmp_path, **settings) as running:
        yield running


def engine_of(served: ServedModel) -> int:
    """The process id of the engine."""
    pid = served.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


def test_a_killed_engine_is_told_and_replaced(served: ServedModel) -> None:
    request = body(model="default", messages=STORY, stream=True, max_tokens=500, ignore_eos=True)
    with (
        httpx.Client(base_url=served.url, timeout=120) as client,
        client.stream("POST", CHAT, json=request) as response,
    ):
        lines = response.iter_lines()
        head = [next(lines) for _ in range(6)]
        killed = engine_of(served)
        os.kill(killed, signal.SIGKILL)
        events = events_of("\n".join([*head, *lines]) + "\n\n")

        assert events[-1]["error"]["code"] == "engine_unavailable"
        until_gone(killed)
        _until_healthy(client)
        assert client.post(CHAT, json=body(model="default", max_tokens=2)).status_code == 200


def _until_healthy(client: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while client.get("/health").status_code != 200:
        assert time.monotonic() < deadline, "no new engine"
        time.sleep(0.1)


def test_sigterm_lets_a_running_stream_end(served: ServedModel) -> None:
    engine = engine_of(served)
    request = body(model="default", messages=STORY, stream=True, max_tokens=12, ignore_eos=True)
    with httpx.stream("POST", served.url + CHAT, json=request, timeout=120) as response:
        lines = response.iter_lines()
        head = next(lines)
        served.process.send_signal(signal.SIGTERM)
        events = events_of("\n".join([head, *lines]) + "\n\n")

    assert events[-1] == "[DONE]"
    assert served.process.wait(timeout=60) == 0
    until_gone(engine)


def test_a_killed_gateway_takes_its_engine_along(served: ServedModel) -> None:
    engine = engine_of(served)

    served.process.kill()
    served.process.wait()

    until_gone(engine)


def test_a_port_in_use_is_one_line_and_leaves_nothing(served: ServedModel, tmp_path: Path) -> None:
    port = served.url.rpartition(":")[2]
    flags = ["--port", port, "--data", str(tmp_path / "other"), "--model", str(tmp_path)]

    second = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", *flags], cwd=REPOSITORY, capture_output=True, timeout=60
    )

    assert second.returncode == 1
    assert second.stderr.decode().count("\n") == 1
    assert f"port {port}" in second.stderr.decode()


def test_an_engine_that_cannot_start_says_why_and_nothing_else(
    default_model_path: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--data", str(tmp_path)]
    environment = os.environ | {
        "STEMMA_ENGINE__KV_BYTES": "1KiB",
        "STEMMA_MODEL__PATH": str(default_model_path),
    }

    ended = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, timeout=120, check=False
    )

    assert ended.returncode == 1
    assert [line.split(":")[0] for line in ended.stderr.decode().splitlines()] == ["stemma", "stemma"]
    assert "one block takes" in ended.stderr.decode()


def test_the_folder_that_serve_is_started_in_lends_no_code(default_model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("raise SystemExit('not this one')")
    command = [Path(sys.executable).with_name("stemma"), "serve", "--port", "0", "--data", "data"]
    environment = os.environ | {
        "STEMMA_ENGINE__KV_BYTES": "1KiB",
        "STEMMA_MODEL__PATH": str(default_model_path),
    }

    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, timeout=120, check=False
    )

    assert "one block takes" in ended.stderr.decode()
