"""A server that is started for a run: up inside it, gone after it, and what it said when it cannot start."""

import sys
import time
from pathlib import Path

import pytest

from benchmarks.load.client import Server
from benchmarks.load.started import CannotStart, started
from gateway.serving import bind

MODELS = """
import http.server, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[2])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()

    def do_POST(self):
        busy = folder / "busy"
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(503 if busy.exists() else 200)
        self.end_headers()
        busy.unlink(missing_ok=True)
        (folder / "asked").open("a").write("x")

    def log_message(self, *arguments):
        pass

child = subprocess.Popen([sys.executable, "-c", sys.argv[3]])
(folder / "pids").write_text(str(child.pid))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SLEEP = "import time; time.sleep(60)"


DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("FOLDER/deaf").touch()
time.sleep(60)
"""


def command(port: int, folder: Path, child: str = SLEEP) -> str:
    program = folder / "models.py"
    program.write_text(MODELS)
    return f"{sys.executable} {program} {port} '{folder}' '{child}'"


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def server() -> Server:
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    return Server(f"http://127.0.0.1:{port}/v1", "m")


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2].partition("/")[0])


def test_a_server_is_up_inside_the_block_and_gone_after_it_with_its_children(
    tmp_path: Path, server: Server
) -> None:
    with started(command(port_of(server), tmp_path), server, ready_seconds=30):
        child = int((tmp_path / "pids").read_text())
        assert is_alive(child)
        with pytest.raises(CannotStart, match="answers at"), started("true", server, ready_seconds=1):
            pass
    assert not is_alive(child)

    with started(command(port_of(server), tmp_path), server, ready_seconds=30):
        pass  # the port is free again


def test_a_server_that_lists_its_models_too_early_is_waited_for(tmp_path: Path, server: Server) -> None:
    (tmp_path / "busy").touch()

    with started(command(port_of(server), tmp_path), server, ready_seconds=30):
        assert (tmp_path / "asked").read_text() == "xx"


def test_a_server_is_ended_when_its_run_fails(tmp_path: Path, server: Server) -> None:
    with (
        pytest.raises(KeyError),
        started(command(port_of(server), tmp_path), server, ready_seconds=30),
    ):
        raise KeyError

    assert not is_alive(int((tmp_path / "pids").read_text()))


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path, server: Server) -> None:
    deaf = DEAF.replace("FOLDER", str(tmp_path))

    with started(command(port_of(server), tmp_path, deaf), server, ready_seconds=30):
        while not (tmp_path / "deaf").exists():
            time.sleep(0.01)

    assert not is_alive(int((tmp_path / "pids").read_text()))


def test_a_server_that_ends_at_once_says_what_it_wrote(server: Server) -> None:
    failing = f"{sys.executable} -c 'import sys; sys.exit(\"no such model\")'"

    with (
        pytest.raises(CannotStart, match=r"code 1:\nno such model"),
        started(failing, server, ready_seconds=30),
    ):
        pass


@pytest.mark.parametrize("bad", ["/no/such/program", "'", ""])
def test_what_is_no_command_is_told(bad: str, server: Server) -> None:
    with pytest.raises(CannotStart), started(bad, server, ready_seconds=1):
        pass


def test_a_server_that_never_answers_is_ended(tmp_path: Path, server: Server) -> None:
    silent = f"""{sys.executable} -c 'import os, pathlib, time
pathlib.Path("{tmp_path}/pid").write_text(str(os.getpid()))
time.sleep(60)'"""

    with pytest.raises(CannotStart, match="after 1 s"), started(silent, server, ready_seconds=1):
        pass

    assert not is_alive(int((tmp_path / "pid").read_text()))
