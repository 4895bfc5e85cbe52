"""Phases of work that threads share: everything once, and nothing before its time."""

import threading
from collections.abc import Callable
from functools import partial

import numba
import numpy as np
import numpy.typing as npt
import pytest

from kernels.cpu.leaf import leaf
from kernels.cpu.parallel import COUNTERS_OF_PHASE, cycles, shared, take_turn

NUM_PHASES = 1000
MAX_TASKS = 23
HANGS_AFTER = 60.0  # seconds, far beyond what any of it takes


@leaf
def _note(task, state):
    """Count the task, and what of the phase before was done when it began; tasks differ in length."""
    phase, times_done, done_before, num_turns = state
    if phase > 0:
        done_before[phase, task] = times_done[phase - 1].sum()
    turns = 0
    while turns < task % 5 * 200:
        turns += 1
        num_turns[task] += 1
    times_done[phase, task] += 1


_take_part = shared(_note)


@numba.njit(nogil=True)
def _run(counters, num_tasks, times_done, done_before, num_turns):
    """What one thread does in all phases. Returns the cycles that it waited."""
    waited = 0
    for phase in range(len(num_tasks)):
        state = (phase, times_done, done_before, num_turns)
        waited += _take_part(counters, phase, num_tasks[phase], state)
    return waited


class Work:
    """Phases of 0 to MAX_TASKS - 1 tasks, and what became of them."""

    def __init__(self) -> None:
        self.counters = np.zeros(NUM_PHASES * COUNTERS_OF_PHASE, np.int64)
        self.num_tasks = np.arange(NUM_PHASES) * 7 % MAX_TASKS
        self.times_done = np.zeros((NUM_PHASES, MAX_TASKS), np.int64)
        self.done_before = np.zeros((NUM_PHASES, MAX_TASKS), np.int64)
        self._num_turns = np.zeros(MAX_TASKS, np.int64)

    def take_part(self) -> int:
        """Returns cycles."""
        arrays = (self.counters, self.num_tasks, self.times_done, self.done_before, self._num_turns)
        waited: int = _run(*arrays)
        return waited

    @property
    def is_task(self) -> npt.NDArray[np.bool_]:
        """[NUM_PHASES, MAX_TASKS]: which of the places are tasks."""
        places: npt.NDArray[np.bool_] = np.arange(MAX_TASKS) < self.num_tasks[:, None]
        return places

    def assert_all_was_done_once_and_in_order(self) -> None:
        assert (self.times_done == self.is_task).all()
        before = np.concatenate([[0], self.num_tasks[:-1]])
        assert (self.done_before == before[:, None] * self.is_task).all()


def _together(num_threads: int, work: Callable[[int], object]) -> None:
    """So many threads at the same time, by number. Nobody waits for ever for one that hangs."""
    start = threading.Barrier(num_threads)

    def run(thread: int) -> None:
        start.wait()
        work(thread)

    threads = [threading.Thread(target=run, args=(thread,), daemon=True) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER)
    assert not any(thread.is_alive() for thread in threads)


def _take_part_together(num_threads: int, work: Work) -> None:
    _together(num_threads, lambda thread: work.take_part())


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_every_task_is_done_once_and_after_all_of_the_phase_before(num_threads: int) -> None:
    for _ in range(10):
        work = Work()

        _take_part_together(num_threads, work)

        work.assert_all_was_done_once_and_in_order()


def test_a_thread_that_comes_late_finds_everything_done() -> None:
    work = Work()
    work.take_part()

    _take_part_together(1, work)

    work.assert_all_was_done_once_and_in_order()


def test_who_works_alone_waits_for_nobody() -> None:
    work = Work()

    assert work.take_part() == 0


@numba.njit(nogil=True)
def _take_turns(counter, turns):
    for place in range(len(turns)):
        turns[place] = take_turn(counter)


def test_no_two_threads_get_the_same_turn() -> None:
    _take_turns(np.zeros(1, np.int64), np.zeros(0, np.int64))  # compiled before threads meet
    for _ in range(20):
        counter, turns = np.zeros(1, np.int64), np.zeros((4, 100_000), np.int64)

        _together(4, partial(_take_turns_of, counter, turns))

        assert np.array_equal(np.sort(turns, axis=None), np.arange(turns.size))
        assert (np.diff(turns, axis=1) > 0).all()


def _take_turns_of(counter: npt.NDArray[np.int64], turns: npt.NDArray[np.int64], thread: int) -> None:
    _take_turns(counter, turns[thread])


@numba.njit
def _cycles_of(num_turns, sums):
    started = cycles()
    for turn in range(num_turns):
        sums[turn % len(sums)] += turn
    return cycles() - started


def test_the_clock_goes_forwards() -> None:
    assert _cycles_of(1_000_000, np.zeros(7)) > 0
