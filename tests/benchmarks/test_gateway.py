"""The bench of the gateway alone: its engine, its client, and all of it together for a moment."""

import argparse
import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.alone.client import Load, post
from benchmarks.alone.engine import HELD_TOKENS, InstantEngine, Plan
from benchmarks.gateway import measure, serve
from engine.messages import Abort, Accepted, Submit
from engine.sequence import SamplingParams

pytestmark = pytest.mark.anyio

EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
STREAM = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + b'4e\r\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n\r\n'
    + b"%x\r\n%b\r\n" % (3 * len(EVENT), 3 * EVENT)
    + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"content":"\r\n\r\n"}'


def submit(request_id: str, max_tokens: int) -> Submit:
    return Submit(
        request_id=request_id, prompt=b"", sampling=SamplingParams(max_tokens=max_tokens), namespace=b""
    )


async def answered(parts: list[bytes], load: Callable[[int], Load], *, streams: bool) -> Load:
    """Ask a server that sends these parts, once."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        asking = load(server.sockets[0].getsockname()[1])
        await asking.open(1, streams=streams)
        await asking.finish()
    return asking


def once(port: int) -> Load:
    return Load(port, post("/x", {}), lambda: False)


def test_every_step_tells_the_next_token_of_everybody_until_they_have_enough() -> None:
    engine = InstantEngine(Plan(token_ids=[7, 8], vocab_size=9, step_seconds=0.0))
    assert engine.take(submit("a", 3)) == Accepted("a")
    engine.take(submit("b", 1))

    told = [[(each.request_id, each.token_ids, each.finish_reason) for each in engine.step().events]]
    while engine.has_work:
        told.append([(each.request_id, each.token_ids, each.finish_reason) for each in engine.step().events])

    assert told == [
        [("a", [7], None), ("b", [7], "length")],
        [("a", [8], None)],
        [("a", [7], "length")],
    ]


def test_who_is_held_hears_one_token_and_who_is_aborted_none() -> None:
    engine = InstantEngine(Plan(token_ids=[7], vocab_size=9, step_seconds=0.0))
    engine.take(submit("held", HELD_TOKENS))
    engine.take(submit("gone", 5))
    engine.take(Abort(request_id="gone"))

    assert [each.request_id for each in engine.step().events] == ["held"]
    assert not engine.has_work


@example(cuts=[STREAM.index(b'"content":"x"') + len('"content":')])
@given(cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=12))
async def test_however_a_stream_is_cut_every_token_is_counted_once(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in pairwise(edges)]
    load = once(0)
    reader = load.reader(streams=True)
    reader.connection_made(Deaf())

    for part in filter(None, parts):
        reader.data_received(part)

    assert (load.counts.num_tokens, load.counts.num_answers) == (3, 1)
    assert reader.done.done()


class Deaf(asyncio.Transport):
    """Takes all and keeps nothing."""

    def write(self, data: Any) -> None:
        """Dropped."""

    def abort(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("size", [1, 7, len(WHOLE)])
async def test_a_whole_answer_is_read_to_its_length(size: int) -> None:
    parts = [WHOLE[start : start + size] for start in range(0, len(WHOLE), size)]

    load = await answered(parts, once, streams=False)

    assert load.counts.num_answers == 1


@pytest.mark.parametrize("streams", [True, False])
async def test_what_is_no_answer_ends_the_measurement(streams: bool) -> None:
    with pytest.raises(RuntimeError, match="503"):
        await answered([b"HTTP/1.1 503 Service Unavailable\r\n\r\n"], once, streams=streams)


async def test_a_connection_that_breaks_ends_the_measurement() -> None:
    with pytest.raises(RuntimeError, match="closed"):
        await answered([STREAM[:90]], once, streams=True)


async def test_all_together_for_a_moment(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(streams=[3], clients=[2], held=[4], tokens=8, seconds=0.2)
    with serve(default_model_path, 0.001) as served:
        await measure(served, options)

    streams, clients, *held = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert streams["streams"] == 3
    assert clients["clients"] == 2
    assert min(streams["per_second"], clients["per_second"]) > 0
    assert [sorted(each["held_mib"]) for each in held] == [["0", "4", "after"]] * 2
