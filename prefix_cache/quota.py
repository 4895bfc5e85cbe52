"""What one account may keep, and what it may have, of the device's blocks.

An account is the first half of a namespace: all namespaces of one tenant begin with it, so what its salts set
apart counts together.
"""

from dataclasses import dataclass
from typing import NewType

from prefix_cache.node import Namespace

__all__ = ["ACCOUNT_BYTES", "Account", "Quota", "account_of"]

Account = NewType("Account", bytes)

ACCOUNT_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Bounds in blocks. The floor is kept from others' demands; the ceiling is never exceeded."""

    floor_blocks: int = 0
    ceiling_blocks: int | None = None


def account_of(namespace: Namespace) -> Account:
    """Whose namespace it is."""
    return Account(namespace[:ACCOUNT_BYTES])
