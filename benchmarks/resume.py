"""What it costs to come back to a conversation: from the device, the host, the disk, or computed anew.

python -m benchmarks.resume --model data/models/NAME.gguf

Each round talks a session of about 2,000 tokens, parks it, drops the disk's files from the system's memory,
and takes the next turn. The first turn of each round computes everything, so it is the recompute of that
round; the turn after the resumed one finds all on the device, so it is what a step and the API cost. Then one
answer streams while other sessions are parked and resumed beside it, in turns with quiet stretches.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
from tqdm import tqdm

from benchmarks.flags import positive
from benchmarks.program import run
from benchmarks.server import Server, serve

NUM_WORDS = 1500  # about 2,000 tokens of the default model
TIMEOUT = httpx.Timeout(300.0)


@dataclass(slots=True)
class Times:
    """Seconds to the first token, a round each."""

    computed: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    on_device: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)  # reading the same bytes without us
    num_tokens: list[int] = field(default_factory=list)


def words(seed: int, count: int) -> str:
    """Text that no other seed begins like."""
    draw = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ren", "tus", "ver", "an", "do", "sel", "pri"]
    return " ".join("".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(count))


def turn(client: httpx.Client, session: str, text: str, max_tokens: int = 4) -> float:
    """One streamed turn of a session; seconds to its first text."""
    body = {
        "model": "bench",
        "session_id": session,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }
    started, first = time.perf_counter(), None
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if first is None and _has_text(line):
                first = time.perf_counter() - started
    assert first is not None, "the answer had no text"
    return first


def _has_text(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line[6:])["choices"]
    return bool(choices and choices[0]["delta"].get("content"))


def new_session(client: httpx.Client) -> str:
    return str(client.post("/v1/sessions", json={}).raise_for_status().json()["id"])


def drop_from_memory(path: Path) -> None:
    """Ask the system to forget what it holds of a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def read_rate_floor(path: Path, num_bytes: int) -> float:
    """Seconds that plain reading of so many bytes of a file takes, not held in memory."""
    drop_from_memory(path)
    file = os.open(path, os.O_RDONLY)
    try:
        buffer = bytearray(num_bytes)
        started = time.perf_counter()
        num_read = os.preadv(file, [buffer], 0)
        seconds = time.perf_counter() - started
    finally:
        os.close(file)
    return seconds * num_bytes / num_read


def rounds(server: Server, data: Path, num_rounds: int, tier: str) -> Times:
    """Sessions that are parked and resumed."""
    times = Times()
    blocks = data / "kv" / "blocks"
    with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
        turn(client, new_session(client), words(0, 50))
        for number in tqdm(range(num_rounds), desc=tier, unit="round"):
            session = new_session(client)
            times.computed.append(turn(client, session, words(number + 1, NUM_WORDS)))
            client.post(f"/v1/sessions/{session}/park").raise_for_status()
            if tier == "disk":
                use = client.get(f"/v1/sessions/{session}").json()["cache"]
                times.floor.append(read_rate_floor(blocks, use["tiers"]["disk"]["bytes"]))
                drop_from_memory(blocks)
            times.resumed.append(turn(client, session, "Go on, please."))
            times.on_device.append(turn(client, session, "And then?"))
            use = client.get(f"/v1/sessions/{session}").json()["cache"]
            times.num_tokens.append(use["tokens"])
            client.delete(f"/v1/sessions/{session}")
    return times


def gaps(client: httpx.Client, seed: int, num_tokens: int) -> list[float]:
    """Seconds between the tokens of one streamed answer."""
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": words(seed, 40)}],
        "max_tokens": num_tokens,
        "min_tokens": num_tokens,
        "temperature": 1,
        "seed": seed,
        "stream": True,
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        arrivals = [time.perf_counter() for line in response.iter_lines() if _has_text(line)]
    return [later - earlier for earlier, later in pairwise(arrivals[5:])]


def movements(server: Server, sessions: list[str], pause: float, stop: threading.Event) -> Iterator[None]:
    """Park and resume sessions in turn until told to stop; yields after each pair."""
    with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
        while not stop.is_set():
            for session in sessions:
                client.post(f"/v1/sessions/{session}/park").raise_for_status()
                client.post(f"/v1/sessions/{session}/resume").raise_for_status()
                yield
                if stop.wait(pause):
                    return


def disturbance(server: Server, num_pairs: int, pause: float) -> tuple[float, float, int]:
    """Mean milliseconds between tokens: quiet, and beside parks and resumes; and how many of those."""
    with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
        sessions = []
        for number in range(2):
            sessions.append(new_session(client))
            turn(client, sessions[-1], words(1000 + number, NUM_WORDS))
        quiet, busy, num_moved = [], [], 0
        gaps(client, 1, 100)
        for pair in tqdm(range(num_pairs), desc=f"beside, every {pause} s", unit="pair"):
            quiet += gaps(client, 2 * pair, 200)
            stop = threading.Event()
            moved: list[None] = []

            def work(stop: threading.Event = stop, moved: list[None] = moved) -> None:
                moved.extend(movements(server, sessions, pause, stop))

            worker = threading.Thread(target=work)
            worker.start()
            busy += gaps(client, 2 * pair + 1, 200)
            stop.set()
            worker.join()
            num_moved += len(moved)
    return 1000 * statistics.mean(quiet), 1000 * statistics.mean(busy), num_moved


def report(tier: str, times: Times) -> None:
    """One paragraph of figures."""
    computed, resumed = statistics.median(times.computed), statistics.median(times.resumed)
    on_device = statistics.median(times.on_device)
    print(
        f"{tier:>6}: {statistics.median(times.num_tokens):.0f} tokens; first token: computed "
        f"{computed * 1000:.0f} ms, resumed {resumed * 1000:.0f} ms (1/{computed / resumed:.1f}), "
        f"on the device {on_device * 1000:.0f} ms"
    )
    if times.floor:
        floor = statistics.median(times.floor)
        allowed = statistics.median(
            1.5 * read + step for read, step in zip(times.floor, times.on_device, strict=True)
        )
        print(
            f"        reading its bytes takes {floor * 1000:.0f} ms; 1.5 times that and one turn on the "
            f"device are {allowed * 1000:.0f} ms; resumed / that = {resumed / allowed:.2f}"
        )


def main() -> None:
    """All of it, and a line for each figure."""
    parser = argparse.ArgumentParser(
        prog="stemma bench resume", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--pairs", type=positive, default=4)
    options = parser.parse_args()
    settings = {"MODEL__NAME": "bench", "ENGINE__KV_BYTES": "512MiB", "LOG__FORMAT": "json"}
    tiers = {
        "host": {"CACHE__HOST_BYTES": "512MiB", "CACHE__DISK": "false"},
        "disk": {"CACHE__HOST_BYTES": "0", "CACHE__DISK": "true"},
    }
    for tier, chosen in tiers.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            serve(options.model, Path(folder), **settings, **chosen) as server,
        ):
            report(tier, rounds(server, Path(folder), options.rounds, tier))
            for pause in (1.0, 0.0):
                quiet, busy, num_moved = disturbance(server, options.pairs, pause)
                print(
                    f"        between tokens, mean: {quiet:.2f} ms quiet, {busy:.2f} ms beside {num_moved} "
                    f"parks and resumes with pauses of {pause} s ({busy / quiet - 1:+.1%})"
                )


if __name__ == "__main__":
    run(main)
