"""Serving from reserved memory, as engines did before paging: a policy, and contiguous room for each request.

Simulated on token slots alone: each step gives every running request one token, prompts are there at once,
and requests start in order, each when a gap is large enough for what its policy reserves (first fit).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.azure import Lengths

__all__ = ["POLICIES", "Policy", "Room", "Use", "first_gap", "simulate"]

Policy = Callable[[Lengths, int], int]  # a request's lengths and the longest that may be -> slots


def _oracle(lengths: Lengths, _longest: int) -> int:
    return sum(lengths)


def _power_of_two(lengths: Lengths, _longest: int) -> int:
    return lengths.num_prompt + (1 << (lengths.num_answer - 1).bit_length())


def _longest(_lengths: Lengths, longest: int) -> int:
    return longest


POLICIES: dict[str, Policy] = {"Max": _longest, "Pow2": _power_of_two, "Oracle": _oracle}


@dataclass(slots=True)
class Use:
    """Means over the steps in which requests waited for memory."""

    num_steps: int = 0
    useful: float = 0.0  # of the slots that were reserved, those that held a token
    of_pool: float = 0.0  # of all slots, those that held a token
    batch: float = 0.0  # requests that ran

    def note(self, num_tokens: int, num_reserved: int, num_slots: int, num_running: int) -> None:
        """One more step."""
        self.num_steps += 1
        weight = 1 / self.num_steps
        self.useful += weight * (num_tokens / num_reserved - self.useful)
        self.of_pool += weight * (num_tokens / num_slots - self.of_pool)
        self.batch += weight * (num_running - self.batch)


class Room(NamedTuple):
    """Slots that are reserved together."""

    start: int
    size: int


@dataclass(slots=True)
class _Running:
    room: Room
    num_tokens: int
    num_left: int


def simulate(requests: Sequence[Lengths], num_slots: int, longest: int, policy: Policy) -> Use:
    """Run all requests from a pool of so many slots."""
    use = Use()
    waiting, running = list(reversed(requests)), list[_Running]()
    while waiting or running:
        while waiting:
            size = policy(waiting[-1], longest)
            start = first_gap([each.room for each in running], size, num_slots)
            if start is None:
                break
            lengths = waiting.pop()
            running.append(_Running(Room(start, size), lengths.num_prompt, lengths.num_answer))
            running.sort(key=lambda each: each.room.start)
        for each in running:
            each.num_tokens += 1
            each.num_left -= 1
        if waiting:
            use.note(
                sum(each.num_tokens for each in running),
                sum(each.room.size for each in running),
                num_slots,
                len(running),
            )
        running = [each for each in running if each.num_left]
    return use


def first_gap(rooms: Sequence[Room], size: int, num_slots: int) -> int | None:
    """Where room of that size begins, beside rooms in their order; None if no gap is large enough."""
    end = 0
    for room in rooms:
        if room.start - end >= size:
            return end
        end = room.start + room.size
    return end if num_slots - end >= size else None
