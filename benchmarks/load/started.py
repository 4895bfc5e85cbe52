"""A server of any kind, started for one run and ended after it: it and all processes of its group."""

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

import httpx

from benchmarks.load.client import Server

__all__ = ["CannotStart", "started"]

_READY_POLL_SECONDS = 0.25
_END_POLL_SECONDS = 0.05
_TERM_SECONDS = 30.0  # between SIGTERM and SIGKILL
_GROUP_SECONDS = 5.0  # for children that outlive the process which was started
_TAIL_BYTES = 8000  # of its output, in a message


class CannotStart(Exception):
    """The command gave no server; the message holds the end of what it wrote."""


@contextmanager
def started(command: str, server: Server, *, ready_seconds: float) -> Iterator[None]:
    """Run a command, without a shell, until the block ends; it begins when the server is ready.

    Ready is who lists its models and does not refuse a request of one token as unavailable (503): some list
    their models before they have loaded them. Raises CannotStart when the server ends before that or takes
    longer than so many seconds, and when something answers there already.
    """
    if _answers(server):
        raise CannotStart(f"something answers at {server.url} already")
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError, IndexError) as error:
            raise CannotStart(f"{command}: {error}") from None
        try:
            _wait(process, server, output, ready_seconds)
            yield
        finally:
            _end(process)


def _answers(server: Server) -> bool:
    try:
        headers = {"Authorization": f"Bearer {server.key}"}
        return httpx.get(f"{server.url}/models", headers=headers, timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def _is_loaded(server: Server, patience: float) -> bool:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    body = server.body([{"role": "user", "content": "Hi"}], 1)
    try:
        answer = httpx.post(f"{server.url}/chat/completions", headers=headers, content=body, timeout=patience)
    except httpx.HTTPError:
        return False
    return answer.status_code != 503


def _wait(process: subprocess.Popen[bytes], server: Server, output: IO[bytes], ready_seconds: float) -> None:
    deadline = time.monotonic() + ready_seconds
    while not (_answers(server) and _is_loaded(server, ready_seconds)):
        if process.poll() is not None:
            raise CannotStart(f"the server ended with code {process.returncode}:\n{_tail(output)}")
        if time.monotonic() > deadline:
            raise CannotStart(f"no answer from {server.url} after {ready_seconds:g} s:\n{_tail(output)}")
        time.sleep(_READY_POLL_SECONDS)


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    return output.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, then SIGKILL to what is left of it."""
    _signal_group(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_TERM_SECONDS)
    _await_group(process)
    if _signal_group(process, signal.SIGKILL):
        process.wait()
        _await_group(process)


def _await_group(process: subprocess.Popen[bytes]) -> None:
    """Until nobody is left, or children that outlive their parent have had their time."""
    deadline = time.monotonic() + _GROUP_SECONDS
    while _signal_group(process, 0) and time.monotonic() < deadline:
        time.sleep(_END_POLL_SECONDS)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether anybody was there to be told. The group has its first process's number, which no other process
    gets while a member lives.
    """
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
