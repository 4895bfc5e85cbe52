"""The flags of a workload, and what they ask for: shared by all programs that drive a server."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.flags import amount, natural, output_file, positive, rate
from benchmarks.load.arrivals import Bursts, Start, Times, Users, poisson, scaled
from benchmarks.load.conversations import SHAPES, Shape, converse
from benchmarks.load.driver import Load
from benchmarks.load.figures import Target
from benchmarks.load.recorded import read_trace, replayed

__all__ = ["BadOptions", "add_load", "add_run", "load_of", "target_of"]


class BadOptions(Exception):
    """Flags that do not go together; the message says which."""


_SHAPE_FLAGS = {  # by the field of a shape
    "num_conversations": (
        "--conversations",
        positive,
        "in all; chat: as many as users, shared: 64, long: 16, burst: 32",
    ),
    "num_turns": ("--turns", positive, "of a conversation; chat: 6, others: 1"),
    "num_systems": ("--systems", positive, "different system prompts; chat: 1, shared and burst: 4"),
    "system": ("--system", natural, "tokens of a system prompt, about; 600, long: none"),
    "user": ("--user", positive, "new tokens of a turn, about; 60, long: 4000"),
    "answer": ("--out", positive, "tokens of an answer, exactly; 64, long: 32"),
}
_TRACE_FLAGS = {
    "speed": (rate, "trace: play it so many times as fast"),
    "requests": (positive, "trace: only so many requests, from the first on; 100"),
    "longest": (positive, "trace: leave out requests of more tokens, prompt and answer together"),
}


def add_load(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a workload."""
    what = parser.add_argument_group("what is asked, and when")
    what.add_argument(
        "--workload",
        choices=[*SHAPES, "trace"],
        default="chat",
        help="chat: conversations that send their whole history with each turn; shared: single questions "
        "under a few system prompts; long: long prompts, short answers; burst: all at one instant, over and "
        "over; trace: recorded lengths and times",
    )
    what.add_argument("--users", type=positive, help="conversations at once, and in one burst; 8")
    what.add_argument(
        "--rate", type=rate, help="instead of users: conversations begin at this rate a second, by chance"
    )
    for name, (flag, kind, help_) in _SHAPE_FLAGS.items():
        what.add_argument(flag, dest=name, type=kind, metavar="N", help=help_)
    what.add_argument("--think", type=amount, metavar="SECONDS", help="mean time between turns; 0")
    what.add_argument("--seed", default="s", help="the same seed asks for the same bytes")
    what.add_argument("--data", type=Path, metavar="FILE", help="trace: Azure's CSV or Mooncake's JSONL")
    for name, (convert, help_) in _TRACE_FLAGS.items():
        what.add_argument(f"--{name}", type=convert, metavar="N", help=help_)
    aims = parser.add_argument_group("targets: the requests that meet them are the goodput")
    aims.add_argument("--target-ttft", type=amount, metavar="MS", help="to the first token")
    aims.add_argument("--target-tpot", type=amount, metavar="MS", help="mean between the tokens of a request")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags of how it is run and where its figures go."""
    how = parser.add_argument_group("how it is run, and where figures go besides standard output")
    how.add_argument(
        "--warmup", type=natural, default=0, metavar="N", help="requests before it, not measured; 0"
    )
    how.add_argument("--timeout", type=rate, default=1200.0, metavar="SECONDS", help="for a request; 1200")
    how.add_argument("--json", type=output_file, metavar="FILE", help="all figures")
    how.add_argument("--plot", type=output_file, metavar="FILE.svg", help="cumulative distributions")


def load_of(options: argparse.Namespace, seed: str) -> Load:
    """The load that flags ask for. Raises BadOptions, and BadTrace for a file."""
    _check(options)
    if options.workload == "trace":
        requests = read_trace(options.data, count=options.requests or 100, longest=options.longest)
        times = scaled([each.time for each in requests], options.speed or 1.0)
        return Load(replayed(requests, seed), Times(times))
    shape = _shape(options)
    return Load(converse(shape, seed), _start(options, shape, seed))


def target_of(options: argparse.Namespace) -> Target | None:
    """The stated target, in seconds; None when none was stated."""
    if options.target_ttft is None and options.target_tpot is None:
        return None
    first_token, per_token = (
        None if value is None else value / 1000 for value in (options.target_ttft, options.target_tpot)
    )
    return Target(first_token, per_token)


def _check(options: argparse.Namespace) -> None:
    if options.json is not None and options.json == options.plot:
        raise BadOptions("--json and --plot name one file: take two")
    if options.rate is not None and options.users is not None:
        raise BadOptions("--users and --rate are two ways to say when: take one")
    if options.rate is not None and options.workload in ("burst", "trace"):
        raise BadOptions(f"--rate: a {options.workload} has its own times")
    if options.workload != "trace":
        _refuse(options, ["data", *_TRACE_FLAGS], "for --workload trace alone")
        return
    if options.data is None:
        raise BadOptions("--workload trace needs --data FILE")
    _refuse(options, [*_SHAPE_FLAGS, "think", "users"], "a trace has its own lengths and times")


def _refuse(options: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            flag = _SHAPE_FLAGS[name][0] if name in _SHAPE_FLAGS else f"--{name}"
            raise BadOptions(f"{flag}: {reason}")


def _shape(options: argparse.Namespace) -> Shape:
    given = {name: getattr(options, name) for name in [*_SHAPE_FLAGS, "think"]}
    if options.workload == "chat" and given["num_conversations"] is None:
        given["num_conversations"] = options.users
    return replace(
        SHAPES[options.workload], **{name: value for name, value in given.items() if value is not None}
    )


def _start(options: argparse.Namespace, shape: Shape, seed: str) -> Start:
    if options.rate is not None:
        return Times(poisson(options.rate, shape.num_conversations, seed))
    users = options.users or 8
    return Bursts(users) if options.workload == "burst" else Users(users)
