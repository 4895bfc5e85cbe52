"""How a step is carried out beside whoever schedules: begun, and waited for.

Owns the thread on which a runner lives. While a step computes there, its owner schedules the next one, takes
in messages and tells what the last one brought.
"""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from engine.step import Step, StepResult

__all__ = ["InlineStepper", "StepThread", "Stepper", "ThreadStepper"]

T = TypeVar("T")
Run = Callable[[Step], StepResult]


class Stepper(Protocol):
    """Carries out one step at a time."""

    def launch(self, step: Step) -> None:
        """Begin a step. The one before it must have been waited for."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether nobody would wait for the result of the step that was begun."""
        ...

    def result(self) -> StepResult:
        """Wait for the step that was begun. Raises what it raised."""
        ...


class InlineStepper:
    """Carries a step out when its result is asked for, on the thread that asks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step: Step | None = None

    def launch(self, step: Step) -> None:
        """Remember the step."""
        assert self._step is None, "one step at a time"
        self._step = step

    @property
    def is_done(self) -> bool:
        """Always: asking for the result is what carries it out."""
        return True

    def result(self) -> StepResult:
        """Carry it out."""
        assert self._step is not None, "no step was begun"
        step, self._step = self._step, None
        return self._run(step)


class ThreadStepper:
    """Carries steps out on a thread of their own."""

    def __init__(self, thread: "StepThread", run: Run) -> None:
        self._thread = thread
        self._run = run
        self._future: Future[StepResult] | None = None

    def launch(self, step: Step) -> None:
        """Hand the step over."""
        assert self._future is None, "one step at a time"
        self._future = self._thread.begin(lambda: self._run(step))

    @property
    def is_done(self) -> bool:
        """Whether it has run."""
        return self._future is not None and self._future.done()

    def result(self) -> StepResult:
        """Wait for it."""
        assert self._future is not None, "no step was begun"
        future, self._future = self._future, None
        return future.result()


class StepThread:
    """One thread that does what it is given, one thing after the other.

    `wake_fd` becomes readable whenever something that was begun is over; `drain` makes it silent again.
    """

    def __init__(self) -> None:
        self.wake_fd, self._signal_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._signal_fd, False)
        self._executor = ThreadPoolExecutor(1, "steps")

    def call(self, function: Callable[[], T]) -> T:
        """Do something there, and wait for what it returns or raises."""
        return self._executor.submit(function).result()

    def begin(self, function: Callable[[], T]) -> Future[T]:
        """Do something there, and wake who listens when it is over."""
        future = self._executor.submit(function)
        future.add_done_callback(lambda _: self._signal())
        return future

    def drain(self) -> None:
        """Forget that anything is over."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_fd, 64):
                pass

    def close(self) -> None:
        """End the thread when it has done what it was given."""
        self._executor.shutdown()
        os.close(self.wake_fd)
        os.close(self._signal_fd)

    def _signal(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe is readable already
            os.write(self._signal_fd, b"\x01")
