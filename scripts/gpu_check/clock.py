"""Time on a GPU, by its own events: medians, with caches flushed before each round.

What is timed is queued while the GPU is still busy with the flush, so that it never waits for Python.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from engine.graphs import record_graph

__all__ = ["Clock", "GPUClock", "median_microseconds", "nothing"]

_NUM_ROUNDS = 11
_NUM_WARM = 2
_NUM_FLUSHES = 8  # a millisecond or so: launching from Python takes less
_FLUSHED_BYTES = 512 << 20  # ten times a GPU's largest cache


def nothing() -> None:
    """What most work needs before it is done again."""


class Clock(Protocol):
    """Times work that is done again and again."""

    def measure(
        self,
        run: Callable[[], torch.Tensor],
        reset: Callable[[], object] = nothing,
        *,
        is_recorded: bool = True,
    ) -> tuple[float, torch.Tensor]:
        """Microseconds, and what was written the last time. `reset` comes before each round and is not timed.

        Recorded work is replayed as a graph, as decoding steps are; what talks to the host cannot be.
        """
        ...


class GPUClock:
    """Of the current GPU."""

    def __init__(self, device: torch.device) -> None:
        # Read, not written: what a flush had left to be written back would be paid for by what is timed.
        self._flushed = torch.ones(_FLUSHED_BYTES // 4, device=device)

    def measure(
        self,
        run: Callable[[], torch.Tensor],
        reset: Callable[[], object] = nothing,
        *,
        is_recorded: bool = True,
    ) -> tuple[float, torch.Tensor]:
        """As `Clock` has it."""
        if is_recorded:
            replay, written = record_graph(torch.cuda.graph_pool_handle())(run)
            return self._time(replay, reset), written
        run()  # compiles, and takes workspaces
        latest: deque[torch.Tensor] = deque(maxlen=1)
        return self._time(lambda: latest.append(run()), reset), latest[0]

    def _time(self, work: Callable[[], None], reset: Callable[[], object]) -> float:
        """The median of many rounds, in microseconds. Nothing waits before the last one is queued."""
        events = []
        for _ in range(_NUM_WARM + _NUM_ROUNDS):
            reset()
            for _ in range(_NUM_FLUSHES):
                self._flushed.sum()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            work()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        times: list[float] = [start.elapsed_time(end) for start, end in events[_NUM_WARM:]]
        return 1000 * statistics.median(times)


def median_microseconds(work: Callable[[], object], num_rounds: int = 7) -> float:
    """By the host's clock, of work that has happened when it returns; two rounds before do not count."""
    times = []
    for _ in range(_NUM_WARM + num_rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times[_NUM_WARM:])
