"""What a cache of another size, or with another policy, would have found of a recorded or made-up load.

python -m benchmarks.simulate --trace FILE --blocks 4000 8000 [--policy both] [--plot FILE.svg]
python -m benchmarks.simulate --usage stemma.sqlite3 --blocks 2900 --times 0.5 1 2 4
python -m benchmarks.simulate --mix scans --blocks 2000

Requests are replayed in their order, each to its end before the next; answers are not part of it. Beside the
policies stand what a cache that knows the future finds (clairvoyant) and one without bounds (unbounded).
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from benchmarks.chart import line_chart
from benchmarks.clairvoyant import clairvoyant
from benchmarks.flags import output_file, positive, rate
from benchmarks.program import run
from benchmarks.replay import paths_of, replay, turns_of
from benchmarks.traces import BadTrace, Request, read_mooncake, read_usage
from benchmarks.workloads import MIXES, make_mix
from prefix_cache.eviction import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.learned import Learned

__all__ = ["main"]

_TURNS = (("1", 1, 1), ("2", 2, 2), ("3", 3, 3), ("4 to 7", 4, 7), ("8 and on", 8, 1 << 60))


def _learned(num_blocks: int) -> EvictionPolicy:
    return Learned(num_blocks, 1)


def _lru(num_blocks: int) -> EvictionPolicy:
    return LeastRecentlyUsed()


_POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {"lru": _lru, "learned": _learned}


@dataclass(frozen=True, slots=True)
class _Load:
    """A trace, and what is true of it whatever the cache."""

    requests: list[Request]
    paths: list[list[int]]
    turns: list[int]
    tokens_per_block: int

    @property
    def num_asked(self) -> int:
        return sum(map(len, self.paths))

    @property
    def num_distinct(self) -> int:
        return len({block for path in self.paths for block in path})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each size; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    sizes = sorted({round(blocks * times) for blocks in options.blocks for times in options.times})
    if sizes[0] < 1:
        parser.error("--blocks times --times: a cache has at least one block")
    try:
        load = _load(options)
    except (BadTrace, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 1
    names = list(_POLICIES) if options.policy == "both" else [options.policy]
    print(f"{len(load.requests):,} requests, {load.num_asked:,} blocks, {load.num_distinct:,} different ones")
    unbounded = _share(load, [load.num_asked - load.num_distinct])
    lines: dict[str, list[float]] = {name: [] for name in [*names, "clairvoyant"]}
    for size in sizes:
        for name, share in _table(load, size, names, unbounded):
            lines[name].append(share)
    if options.plot is not None:
        options.plot.write_text(line_chart(sizes, {**lines, "unbounded": [unbounded] * len(sizes)}))
    return 0


def _table(load: _Load, size: int, names: Sequence[str], unbounded: float) -> list[tuple[str, float]]:
    """Print one size's table; answers with each row's share of blocks found."""
    num_skipped = sum(len(path) > size for path in load.paths)
    print(f"\n{size:,} blocks ({size / load.num_distinct:.1%} of the different ones)", end="")
    print(f"; {num_skipped:,} requests are longer and were skipped" if num_skipped else "")
    turns = " ".join(f"{name:>9}" for name, _, _ in _TURNS)
    print(f"{'':12}{'found':>8}{'tokens saved':>15}{'of the gap':>12}   by turn: {turns}   requests/s")
    best = clairvoyant(load.paths, size)
    best_share = _share(load, best)
    lru_share = None
    shares = []
    for name in names:
        started = time.perf_counter()
        bar = tqdm(load.requests, desc=name, unit="request", leave=False)
        hits = replay(bar, size, _POLICIES[name](size))
        rate = len(hits) / (time.perf_counter() - started)
        share = _share(load, hits)
        if name == "lru":
            lru_share = share
        gap = (
            ""
            if lru_share is None or best_share <= lru_share
            else (share - lru_share) / (best_share - lru_share)
        )
        print(_row(load, name, hits, gap if name != "lru" else ""), f"{rate:12,.0f}")
        shares.append((name, share))
    print(_row(load, "clairvoyant", best, ""))
    print(f"{'unbounded':12}{unbounded:8.2%}")
    return [*shares, ("clairvoyant", best_share)]


def _row(load: _Load, name: str, hits: Sequence[int], gap: float | str) -> str:
    by_turn = []
    for _, first, last in _TURNS:
        chosen = [index for index, turn in enumerate(load.turns) if first <= turn <= last]
        num_asked = sum(len(load.paths[index]) for index in chosen)
        num_found = sum(hits[index] for index in chosen)
        by_turn.append(f"{num_found / num_asked:9.2%}" if num_asked else f"{'-':>9}")
    saved = sum(hits) * load.tokens_per_block
    closed = gap if isinstance(gap, str) else f"{gap:.1%}"
    return f"{name:12}{_share(load, hits):8.2%}{saved:15,}{closed:>12}            {' '.join(by_turn)}"


def _share(load: _Load, hits: Sequence[int]) -> float:
    return sum(hits) / max(1, load.num_asked)


def _load(options: argparse.Namespace) -> _Load:
    """Read or make the trace. Raises BadTrace."""
    tokens_per_block = 512
    if options.trace is not None:
        requests = list(islice(read_mooncake(options.trace), options.limit))
    elif options.usage is not None:
        requests, tokens_per_block = read_usage(options.usage)[: options.limit], 16
    else:
        requests = make_mix(options.mix, options.seed)[: options.limit]
    if not any(request.num_blocks for request in requests):
        raise BadTrace("the trace has no request that asks for a block")
    paths = paths_of(requests)
    return _Load(requests, paths, turns_of(paths), options.tokens_per_block or tokens_per_block)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stemma simulate",
        description="What a cache of another size, or with another policy, would have found.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="FILE", help="a trace in Mooncake's JSONL")
    source.add_argument("--usage", metavar="DATABASE", help="Stemma's own log: an SQLite file, or a URL")
    source.add_argument("--mix", choices=sorted(MIXES), help="a load that is made up")
    parser.add_argument("--blocks", type=positive, nargs="+", required=True, help="sizes of the cache")
    parser.add_argument(
        "--times", type=rate, nargs="+", default=[1.0], help="these sizes times each of these"
    )
    parser.add_argument("--policy", choices=[*_POLICIES, "both"], default="both")
    parser.add_argument(
        "--tokens-per-block", type=positive, help="for tokens saved; 512 unless told, 16 with --usage"
    )
    parser.add_argument("--limit", type=positive, help="only so many requests, from the first on")
    parser.add_argument("--seed", type=int, default=1, help="of a made-up load")
    parser.add_argument("--plot", type=output_file, metavar="FILE.svg", help="draw shares found over sizes")
    return parser


if __name__ == "__main__":
    run(main)
