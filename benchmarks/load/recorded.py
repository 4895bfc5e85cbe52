"""Recorded requests as conversations of one turn, at their own times: Azure's CSV and Mooncake's JSONL.

The traces hold lengths, not texts; texts are made up. Mooncake's `hash_ids` name blocks of 512 tokens of the
prompt: equal names become equal texts, so prompts share what those of the trace shared.
"""

import csv
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from math import isfinite
from pathlib import Path

from benchmarks.load.conversations import Conversation, Turn
from benchmarks.load.texts import plain_text
from benchmarks.traces import BadTrace

__all__ = ["Recorded", "read_trace", "replayed"]

_BLOCK_TOKENS = 512  # of a block that Mooncake names


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a trace."""

    time: float  # seconds, from any begin
    num_prompt: int  # tokens
    num_answer: int
    names: tuple[int, ...] = field(default=())  # of the prompt's blocks, where the trace has them


def read_trace(path: Path, *, count: int, longest: int | None = None) -> list[Recorded]:
    """The first `count` requests of a file, by its ending CSV or JSONL, in the order of time.

    Left out: requests without a prompt or an answer, and those of which both together have more than
    `longest` tokens. Raises BadTrace.
    """
    rows = _azure(path) if path.suffix.lower() == ".csv" else _mooncake(path)
    fitting = (
        each
        for each in rows
        if min(each.num_prompt, each.num_answer) > 0
        and (longest is None or each.num_prompt + each.num_answer <= longest)
    )
    found = sorted(islice(fitting, count), key=lambda each: each.time)
    if not found:
        raise BadTrace(f"{path} has no request that fits")
    return found


def replayed(requests: Iterable[Recorded], seed: str) -> tuple[Conversation, ...]:
    """A conversation of one turn for each request."""
    return tuple(
        Conversation((Turn(_prompt(each, number, seed), each.num_answer),))
        for number, each in enumerate(requests)
    )


def _prompt(request: Recorded, number: int, seed: str) -> str:
    if not request.names:
        return plain_text(random.Random(f"{seed}/{number}"), request.num_prompt)
    text = " ".join(
        plain_text(random.Random(f"{seed}/block/{name}"), _BLOCK_TOKENS) for name in request.names
    )
    return " ".join(text.split(" ")[: request.num_prompt])


def _azure(path: Path) -> Iterator[Recorded]:
    """Columns TIMESTAMP, ContextTokens, GeneratedTokens."""

    def parse(lines: Iterable[str]) -> Iterator[Recorded]:
        for row in csv.DictReader(lines):
            time = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
            yield Recorded(time, int(row["ContextTokens"]), int(row["GeneratedTokens"]))

    return _rows(path, parse)


def _mooncake(path: Path) -> Iterator[Recorded]:
    """One object a line: timestamp in ms, input_length, output_length, hash_ids."""

    def parse(lines: Iterable[str]) -> Iterator[Recorded]:
        for line in lines:
            if line.strip():
                row = json.loads(line)
                names = tuple(map(int, row.get("hash_ids", ())))
                yield Recorded(
                    row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]), names
                )

    return _rows(path, parse)


def _rows(path: Path, parse: Callable[[Iterable[str]], Iterator[Recorded]]) -> Iterator[Recorded]:
    num_read = 0

    def counted(lines: Iterable[str]) -> Iterator[str]:
        nonlocal num_read
        for line in lines:
            num_read += 1
            yield line

    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for request in parse(counted(lines)):
                if not isfinite(request.time):
                    raise ValueError(f"its time is {request.time}")
                yield request
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror}") from None
    except KeyError as error:
        raise BadTrace(f"{path}, line {num_read}: not a request of a trace: it has no {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise BadTrace(f"{path}, line {num_read}: not a request of a trace: {error}") from None
