"""Work for a device beside its steps: what is asked of a lane happens in order, and lanes follow each other.

A lane is a stream, a mark an event on it. Any thread may ask; only `Mark.wait` waits.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Protocol

import torch

__all__ = ["DeviceLane", "Lane", "Mark", "Pipeline"]


class Mark(Protocol):
    """A place in what a lane was asked for."""

    def wait(self) -> None:
        """Sleep until the lane has come past it."""
        ...


class Lane(Protocol):
    """Does what it is asked for in order, later."""

    def ask(self, function: Callable[[], object]) -> None:
        """Have a function's operations carried out. What it holds must last until then."""
        ...

    def follow(self, mark: Mark) -> None:
        """Carry out nothing asked for from here on before another lane has come past a mark."""
        ...

    def follow_steps(self) -> None:
        """The same for all that steps have asked for so far."""
        ...

    def mark(self) -> Mark:
        """What was asked for so far."""
        ...

    def memory(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8 on the device, for who asks this lane to write it first."""
        ...


class DeviceLane:
    """A stream of a GPU, whose steps use the default one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def ask(self, function: Callable[[], object]) -> None:
        """As `Lane` has it."""
        with torch.cuda.stream(self._stream):
            function()

    def follow(self, mark: Mark) -> None:
        """As `Lane` has it."""
        assert isinstance(mark, _DeviceMark), "a mark of another kind of lane"
        self._stream.wait_event(mark.event)

    def follow_steps(self) -> None:
        """As `Lane` has it."""
        self._stream.wait_stream(torch.cuda.default_stream(self._stream.device))

    def mark(self) -> Mark:
        """As `Lane` has it."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _DeviceMark(event)

    def memory(self, num_bytes: int) -> torch.Tensor:
        """As `Lane` has it."""
        with torch.cuda.stream(self._stream):
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._stream.device)


class _DeviceMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()


class Pipeline:
    """Two lanes with buffers between them: one fills a buffer while the other empties the one before.

    A context: when it is left, however it is left, nothing is under way any more.
    """

    def __init__(self, first: Lane, second: Lane, buffer_bytes: int, num_buffers: int = 2) -> None:
        self._first = first
        self._second = second
        self._buffers: deque[tuple[torch.Tensor, Mark | None]] = deque(
            (first.memory(buffer_bytes), None) for _ in range(num_buffers)
        )

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in (self._first, self._second):
            lane.mark().wait()

    def push(self, fill: Callable[[torch.Tensor], object], empty: Callable[[torch.Tensor], object]) -> None:
        """Ask the first lane to fill a buffer and the second to empty it. Never waits."""
        buffer, emptied = self._buffers.popleft()
        if emptied is not None:
            self._first.follow(emptied)
        self._first.ask(partial(fill, buffer))
        self._second.follow(self._first.mark())
        self._second.ask(partial(empty, buffer))
        self._buffers.append((buffer, self._second.mark()))
