"""Load on one OpenAI-compatible server, and its figures: first tokens, time between tokens, rates, goodput.

  stemma bench serve --url http://127.0.0.1:8000/v1 --model NAME --users 8
  stemma bench serve --url URL --model NAME --workload shared --rate 4 --target-ttft 500 --target-tpot 50
  stemma bench serve --url URL --model NAME --workload trace --data trace.jsonl --longest 8000 --speed 2

All answers are streamed from /v1/chat/completions, greedy, and forced to their length where the server knows
`ignore_eos`. Users are a closed loop: who was answered asks again. A rate is an open loop: conversations
begin at times of a Poisson process, whatever the server does. Counts of tokens are those of `usage`; a gap
between tokens is the time between two events with text. The exit code is 1 if anything failed.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.distribution_chart import distribution_chart
from benchmarks.flags import api_url, json_object
from benchmarks.load.client import Server
from benchmarks.load.figures import measure
from benchmarks.load.options import (
    BadOptions,
    add_load,
    add_run,
    load_of,
    target_of,
)
from benchmarks.load.report import as_json, panels, table
from benchmarks.load.running import WarmUpFailed, run_load
from benchmarks.program import run
from benchmarks.traces import BadTrace

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load and print its figures; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    server = Server(
        options.url,
        options.model,
        key=options.key,
        extra=options.extra,
        ignores_eos=not options.no_ignore_eos,
        timeout=options.timeout,
    )
    try:
        load, target = load_of(options, options.seed), target_of(options)
        run = run_load(load, server, num_warmup=options.warmup, seed=options.seed, title=options.workload)
    except BadOptions as error:
        parser.error(str(error))
    except (BadTrace, WarmUpFailed, OSError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    figures = measure(run.records, seconds=run.seconds, num_unsent=run.num_unsent, target=target)
    print(f"{options.workload} at {server.url}, model {server.model}, seed {options.seed}\n")
    print(table(figures, target))
    if options.json is not None:
        what = {"url": server.url, "model": server.model, "workload": options.workload, "seed": options.seed}
        options.json.write_text(json.dumps({**what, **as_json(figures)}, indent=2, allow_nan=False) + "\n")
    if options.plot is not None:
        options.plot.write_text(distribution_chart(panels({server.model: run.records})))
    return 1 if figures.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stemma bench serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", type=api_url, required=True, help="of the API's root: http://host:port/v1")
    parser.add_argument("--model", required=True, help="the name that the server gives it")
    parser.add_argument("--key", default="none", help="the API key")
    parser.add_argument("--extra", type=json_object, default={}, metavar="JSON", help="more fields of bodies")
    parser.add_argument("--no-ignore-eos", action="store_true", help="for servers that refuse `ignore_eos`")
    add_load(parser)
    add_run(parser)
    return parser


if __name__ == "__main__":
    run(main)
