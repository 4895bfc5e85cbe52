"""How a park or a prefetch goes: filled by the cache, read by who asked when it is done."""

from dataclasses import dataclass, field

from prefix_cache.plan import Tier

__all__ = ["Movement"]


@dataclass(slots=True, eq=False)
class Movement:
    """One park or prefetch of a prefix. Mutated by the cache until `is_done`."""

    num_tokens: int  # of the prefix
    found: dict[Tier, int] = field(default_factory=dict)  # tokens that could be had from each tier at first
    num_parked_tokens: int = 0  # that lie on the coldest tier now
    num_to_compute: int = 0  # that lie nowhere, or are cheaper to compute than to bring back
    num_moved_blocks: int = 0
    message: str | None = None  # why less was moved than was asked for
    is_done: bool = False

    def end(self, message: str | None = None) -> None:
        """Nothing more will move."""
        self.message = self.message or message
        self.is_done = True
