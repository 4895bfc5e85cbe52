"""One measured run with a progress bar, after requests that warm the server up and are not measured."""

import asyncio
from dataclasses import replace

from tqdm import tqdm

from benchmarks.load.arrivals import Users
from benchmarks.load.client import Server
from benchmarks.load.conversations import SHAPES, converse
from benchmarks.load.driver import Load, Run, drive
from benchmarks.load.record import Record

__all__ = ["WarmUpFailed", "run_load"]


class WarmUpFailed(Exception):
    """The server did not answer before anything was measured; the message says what it said."""


def run_load(load: Load, server: Server, *, num_warmup: int, seed: str, title: str) -> Run:
    """Drive the server; the bar is drawn where standard error is a terminal. Raises WarmUpFailed."""
    if num_warmup:
        _warm_up(server, num_warmup, seed)
    with tqdm(total=load.num_turns, desc=title, unit="request", disable=None, leave=False) as bar:

        def advance(record: Record) -> None:
            bar.update(1)

        return asyncio.run(drive(load, server, advance))


def _warm_up(server: Server, count: int, seed: str) -> None:
    """Short chats with bytes that the run does not send, one after the other."""
    shape = replace(SHAPES["chat"], num_conversations=count, num_turns=1, answer=8)
    run = asyncio.run(drive(Load(converse(shape, f"{seed}/warm-up"), Users(1)), server, lambda record: None))
    for record in run.records:
        if record.failure is not None:
            raise WarmUpFailed(f"warming up: {record.failure.kind}: {record.failure.detail}")
