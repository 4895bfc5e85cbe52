"""`stemma bench` and `stemma simulate`: programs beside the gateway, which take the place of the process
that was asked.

It owns their names and nothing of theirs: it imports none of them, and their flags and exit codes go through.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

__all__ = ["BENCHES", "UnknownBench", "bench", "module_of", "run_program"]

BENCHES: Mapping[str, str] = {
    "agreement": "how often a greedy answer changes with what was cached and who runs beside it",
    "attention": "how near attention on the CPU comes to the speed of memory",
    "beam": "blocks saved when the hypotheses of a beam search share what they have in common",
    "block-size": "what the size of a block decides: waste, sharing, the scheduler's own time",
    "chatbot": "latency against the rate of requests, by how memory is given out, in simulated time",
    "compare": "several OpenAI-compatible servers under the same load, in turn",
    "engine": "the bare engine: steps, prompts, batches, many users of one new prompt",
    "gateway": "what the gateway costs by itself: streamed tokens, short requests, memory of open streams",
    "growth": "how cost grows with users, context, history and conversations",
    "one-by-one": "transformers' own `generate`, one chat turn after the other, to hold a server against",
    "prefix": "what a shared beginning is worth: the same requests with it cached, and without",
    "profile": "where a step's time goes, beside what the machine could do",
    "quality": "what products, keys and values of few bits cost in quality, and save in time and memory",
    "resume": "what it costs to come back to a conversation",
    "sampling": "blocks saved when the answers to one prompt share it",
    "serve": "load on any OpenAI-compatible server: chats, bursts, traces",
    "shared-prefix": "what it saves to read a shared prefix once",
    "speculation": "what proposing tokens ahead brings",
    "swap": "bringing a conversation's blocks back, or computing them again",
    "tree": "what the radix tree costs in time and memory, beside a flat cache of hashes",
    "waste": "how much of the memory for keys and values is wasted",
}


class UnknownBench(Exception):
    """No bench has this name; the message lists those that there are."""


def bench(arguments: Sequence[str]) -> int:
    """Measure something: `stemma bench NAME [ARGS...]`. Answers with the exit code. Raises UnknownBench."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: stemma bench NAME [ARGS...]\n\n{_table()}\n\n`stemma bench NAME -h` shows its flags.")
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in BENCHES:
        raise UnknownBench(f"there is no bench {name!r}; there are:\n{_table()}")
    return run_program(f"benchmarks.{module_of(name)}", rest)


def module_of(name: str) -> str:
    """The file of a bench, without its ending."""
    return name.replace("-", "_")


def run_program(module: str, arguments: Sequence[str]) -> NoReturn:
    """Become a module run as a program: signals reach it, and its exit code is this process's."""
    # -P: the folder that the user stands in may hold packages of the same names. Threads that wait for each
    # other should not burn a core that others want: see docs/decisions/006-short-spins.md.
    command = [sys.executable, "-P", "-m", module, *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, {"GOMP_SPINCOUNT": "2000", **os.environ})


def _table() -> str:
    width = max(map(len, BENCHES))
    return "\n".join([f"  {name:{width}}  {line}" for name, line in BENCHES.items()])
