"""Prefixes that stay on the device until told otherwise, or until their time is over.

A pin holds what is there of a prefix when it is set. Pins and the accounts' floors together always leave room
for one request of the greatest length.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prefix_cache.node import Namespace
from prefix_cache.paths import Hold
from prefix_cache.tree import PrefixCache

__all__ = ["Pins", "PinsFull"]


class PinsFull(Exception):
    """The pin would leave too few blocks; the message says how many there are."""


@dataclass(frozen=True, slots=True)
class _Pin:
    hold: Hold
    until: float | None


class Pins:
    """Named pins over one tree."""

    def __init__(self, tree: PrefixCache, num_kept_free: int) -> None:
        """`num_kept_free` blocks are never pinned, nor are those that floors keep."""
        self._tree = tree
        self._num_kept_free = num_kept_free
        self._limit = max(0, tree.num_blocks - num_kept_free - tree.ledger.num_reserved)
        self._pins: dict[str, _Pin] = {}

    @property
    def holds(self) -> Iterable[Hold]:
        """What is held now."""
        return [pin.hold for pin in self._pins.values()]

    def set(self, name: str, namespace: Namespace, tokens: bytes, until: float | None) -> Hold:
        """Pin what is there of a prefix, in place of an earlier pin of that name. Raises PinsFull; the
        earlier pin is gone then, too.
        """
        self.end(name)
        hold = self._tree.pin(namespace, tokens)
        ledger = self._tree.ledger
        own_limit = max(0, ledger.ceiling_of(namespace) - self._num_kept_free)
        for num_pinned, limit in (
            (ledger.num_pinned, self._limit),
            (ledger.num_pinned_of(namespace), own_limit),
        ):
            if num_pinned > limit:
                self._tree.unpin(hold)
                raise PinsFull(
                    f"{num_pinned} blocks would be pinned, and at most {limit} may be: "
                    "the rest is kept for requests"
                )
        self._pins[name] = _Pin(hold, until)
        return hold

    def end(self, name: str) -> None:
        """End a pin; an unknown name is ignored."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._tree.unpin(pin.hold)

    def expire(self, now: float) -> None:
        """End the pins whose time is over."""
        over = [name for name, pin in self._pins.items() if pin.until is not None and pin.until <= now]
        for name in over:
            self.end(name)
