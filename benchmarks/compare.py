"""Several OpenAI-compatible servers under the same load, in turn, and their figures beside each other.

  stemma bench compare --server ours=http://127.0.0.1:8401/v1@SmolLM2-135M-Instruct \\
    --server peer=http://127.0.0.1:8102/v1@peer --rounds 3
  stemma bench compare \\
    --server ours=http://127.0.0.1:8401/v1@SmolLM2-135M-Instruct --start ours='stemma serve --port 8401' \\
    --server peer=http://127.0.0.1:8102/v1@peer --start peer='env THREADS=2 peer-server --port 8102'

The servers run A B A B, so that what drifts on the machine falls on all alike. In a round all get the same
bytes, in each round others, so that none has a prompt from an earlier round cached; round 1 of seed `s` asks
what `stemma bench serve --seed s1` does. A server with a command is started before its run and ended after
it, so that none runs beside another. Told are medians over the rounds (least to greatest), and under each the
ratio to the first server, round by round; only whole rounds count. The exit code is 1 if anything failed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from benchmarks.distribution_chart import distribution_chart
from benchmarks.flags import positive, rate
from benchmarks.load.client import Server
from benchmarks.load.comparison import comparison_table
from benchmarks.load.driver import Run
from benchmarks.load.figures import Figures, measure
from benchmarks.load.options import (
    BadOptions,
    add_load,
    add_run,
    load_of,
    target_of,
)
from benchmarks.load.report import as_json, failures, flat, panels
from benchmarks.load.rounds import compare, order
from benchmarks.load.running import WarmUpFailed, run_load
from benchmarks.load.servers import add_servers, commands_of, servers_of
from benchmarks.load.started import CannotStart, started
from benchmarks.program import run
from benchmarks.traces import BadTrace

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class _Measured:
    """One server's run of one round."""

    number: int
    name: str
    run: Run
    figures: Figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rounds and print the comparison; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    measured: list[_Measured] = []
    try:
        servers, commands = servers_of(options), commands_of(options)
        for each in _runs(options, servers, commands):
            print(_line(each), file=sys.stderr)
            measured.append(each)
    except BadOptions as error:
        parser.error(str(error))
    except (BadTrace, CannotStart, WarmUpFailed, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
    num_rounds = len(measured) // len(servers) if measured else 0
    if num_rounds:
        _tell(options, list(servers), measured[: num_rounds * len(servers)])
    is_well = num_rounds == options.rounds and not any(each.figures.failures for each in measured)
    return 0 if is_well else 1


def _tell(options: argparse.Namespace, servers: Sequence[str], measured: Sequence[_Measured]) -> None:
    """Whole rounds, as text and as files."""
    of_server = {name: [each for each in measured if each.name == name] for name in servers}
    compared = compare({name: [flat(each.figures) for each in runs] for name, runs in of_server.items()})
    print(f"{options.workload}, seed {options.seed}, {measured[-1].number} of {options.rounds} rounds\n")
    print(comparison_table(compared))
    for line in _failed(measured):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(_as_json(measured), indent=2, allow_nan=False) + "\n")
    if options.plot is not None:
        records = {
            name: [each for one in runs for each in one.run.records] for name, runs in of_server.items()
        }
        options.plot.write_text(distribution_chart(panels(records)))


def _runs(
    options: argparse.Namespace, servers: Mapping[str, Server], commands: Mapping[str, str]
) -> Iterator[_Measured]:
    target = target_of(options)
    for number, name in order(list(servers), options.rounds):
        seed, server = f"{options.seed}{number}", servers[name]
        load = load_of(options, seed)
        command = commands.get(name)
        running = started(command, server, ready_seconds=options.ready) if command else nullcontext()
        with running:
            title = f"{name}, round {number} of {options.rounds}"
            run = run_load(load, server, num_warmup=options.warmup, seed=seed, title=title)
        figures = measure(run.records, seconds=run.seconds, num_unsent=run.num_unsent, target=target)
        yield _Measured(number, name, run, figures)


def _line(one: _Measured) -> str:
    figures = one.figures
    num_failed = figures.num_sent - figures.num_answered
    return (
        f"round {one.number}, {one.name}: {figures.tokens_per_second:,.1f} output tokens/s, "
        f"{figures.num_answered} answered, {num_failed} failed, {figures.seconds:.1f} s"
    )


def _failed(measured: Sequence[_Measured]) -> list[str]:
    return [
        f"round {each.number}, {each.name}: {line}"
        for each in measured
        if each.figures.failures
        for line in failures(each.figures)
    ]


def _as_json(measured: Sequence[_Measured]) -> list[dict[str, object]]:
    """One object a run, in the order of running."""
    return [{"round": each.number, "server": each.name, **as_json(each.figures)} for each in measured]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stemma bench compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_servers(parser)
    parser.add_argument("--rounds", type=positive, default=3, help="runs of each server; 3")
    parser.add_argument(
        "--ready", type=rate, default=600.0, metavar="SECONDS", help="for a server to start; 600"
    )
    add_load(parser)
    add_run(parser)
    return parser


if __name__ == "__main__":
    run(main)
