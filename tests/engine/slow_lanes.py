"""Lanes that do nothing before they must, and then in any order that they promise.

What was asked is carried out when somebody waits, now from this lane and now from that one, by chance: so
what only happened to come first shows.
"""

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.lanes import Mark


@dataclass(eq=False)
class SlowMark:
    """Past which a lane has come or not."""

    machine: "Machine"
    is_past: bool = False

    def wait(self) -> None:
        self.machine.run_until(self)


@dataclass(eq=False)
class SlowLane:
    """Of one machine."""

    machine: "Machine"
    asked: deque[Callable[[], object] | SlowMark | None] = field(default_factory=deque)
    following: deque[SlowMark] = field(default_factory=deque)

    def ask(self, function: Callable[[], object]) -> None:
        self._append(function)

    def follow(self, mark: Mark) -> None:
        assert isinstance(mark, SlowMark)
        self._append(mark)

    def follow_steps(self) -> None:
        self.follow(self.machine.steps.mark())

    def mark(self) -> SlowMark:
        mark = SlowMark(self.machine)
        self._append(lambda: setattr(mark, "is_past", True))
        return mark

    def memory(self, num_bytes: int) -> torch.Tensor:
        buffer = torch.full((num_bytes,), 0xAA, dtype=torch.uint8)
        self.machine.buffers.append(num_bytes)
        return buffer

    def advance(self) -> bool:
        """Carry out the next thing if it may happen now."""
        head = self.asked[0] if self.asked else None
        if head is None or (isinstance(head, SlowMark) and not head.is_past):
            return False
        self.asked.popleft()
        if not isinstance(head, SlowMark):
            head()
        return True

    def _append(self, what: Callable[[], object] | SlowMark) -> None:
        with self.machine.lock:
            self.asked.append(what)


class Machine:
    """Lanes, and that of the steps."""

    def __init__(self, seed: int = 0) -> None:
        self.lock = threading.RLock()
        self.buffers: list[int] = []  # bytes of each that was taken
        self._chance = random.Random(seed)
        self.steps, self.bus, self.kernels = (SlowLane(self) for _ in range(3))

    @property
    def is_idle(self) -> bool:
        """Whether all that was asked has been carried out, but for what steps were asked for."""
        return not self.bus.asked and not self.kernels.asked

    def run_until(self, mark: SlowMark) -> None:
        """No more is carried out than must be, so far as chance has it."""
        with self.lock:
            while not mark.is_past:
                lanes = [self.steps, self.bus, self.kernels]
                self._chance.shuffle(lanes)
                assert any(lane.advance() for lane in lanes), "lanes wait for each other"
