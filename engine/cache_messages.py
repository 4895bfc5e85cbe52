"""What a client asks of the cache apart from requests, and what it is told. All of it crosses the border.

Prefixes are given as packed int32 ids with the namespace that may see them. Counts are of tokens unless they
say otherwise.
"""

from typing import Literal

import msgspec

__all__ = [
    "CacheAnswer",
    "CacheEvent",
    "CacheEvents",
    "CacheMessage",
    "CacheReport",
    "Forget",
    "Forgotten",
    "ListNodes",
    "Locate",
    "MissReason",
    "Moved",
    "NodePage",
    "NodeView",
    "Park",
    "Pin",
    "Pinned",
    "Prefetch",
    "Residency",
    "Settle",
    "Settled",
    "TierName",
    "TierUse",
    "Unpin",
    "Watch",
]

TierName = Literal["device", "host", "disk"]

MissReason = Literal[
    "none",  # nothing is missing: all but the last token was found
    "empty",  # nothing that the namespace may see begins like this
    "new",  # the cached path ends here: what follows has not been seen
    "parted",  # the nearest path goes on with other tokens
    "evicted",  # it was here, and had to make room
    "recomputed",  # it lies on a colder tier, and computing it again was the cheaper way
    "bypassed",  # the request asked to match nothing
]


class CacheReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of one prompt came from where, and why not more. All parts add up to the prompt."""

    num_device_tokens: int = 0
    num_host_tokens: int = 0
    num_disk_tokens: int = 0
    num_computed_tokens: int = 0
    num_copied_blocks: int = 0  # copied on write, since the match ended inside them
    parted_at: int = 0  # the first token that no cached path has: an index into the prompt
    reason: MissReason = "none"


class Locate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Say where a prefix lies. Holds nothing and refreshes nothing. Answered by Residency."""

    ticket: int
    namespace: bytes
    tokens: bytes


class Park(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write a prefix to the coldest tier there is, and let it leave the device. Answered by Moved, when all
    that was there is durable. What others use stays where it is, too.
    """

    ticket: int
    namespace: bytes
    tokens: bytes


class Prefetch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Bring a prefix back to the device before anybody asks for it. Answered by Moved, when it is there."""

    ticket: int
    namespace: bytes
    tokens: bytes


class Forget(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Drop from every tier what this prefix alone holds; what others share stays, and so do its first
    `num_kept` tokens. Answered by Forgotten.
    """

    ticket: int
    namespace: bytes
    tokens: bytes
    num_kept: int = 0


class Pin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep on the device what is there of a prefix, under a name; a pin of that name is replaced. Answered by
    Pinned.
    """

    ticket: int
    name: str
    namespace: bytes
    tokens: bytes
    seconds: float | None = None  # None: until Unpin


class Unpin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a pin; an unknown name is ignored. Answered by Pinned."""

    ticket: int
    name: str


class ListNodes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A page of one tier's tree, oldest node first. Answered by NodePage."""

    ticket: int
    tier: TierName = "device"
    after: int = 0  # the last page's `next`
    limit: int = 100


class Settle(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Say when nothing is on its way between tiers any more. Answered by Settled."""

    ticket: int


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send CacheEvents from now on, or no more. Not answered."""

    is_on: bool


CacheMessage = Locate | Park | Prefetch | Forget | Pin | Unpin | ListNodes | Settle


class TierUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier holds of a prefix. It is shared when anything else hangs from the same blocks."""

    num_tokens: int
    num_blocks: int
    num_shared_blocks: int
    num_bytes: int
    num_shared_bytes: int


class Residency(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where a prefix lies now. A tier that does not exist is left out."""

    ticket: int
    num_tokens: int  # of the prefix that was asked for
    tiers: dict[TierName, TierUse]


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How a park or a prefetch ended: where the prefix could be had from when it began, warmest tier first.

    After a park, `num_parked_tokens` lie durably on the coldest tier; after a prefetch, all but
    `num_to_compute` tokens lie on the device.
    """

    ticket: int
    num_device_tokens: int
    num_host_tokens: int
    num_disk_tokens: int
    num_to_compute: int
    num_parked_tokens: int
    num_moved_blocks: int
    num_moved_bytes: int
    seconds: float
    message: str | None = None  # why less was moved than was asked for, if so


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The blocks that became free, by tier."""

    ticket: int
    num_blocks: dict[TierName, int]


class Pinned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How many leading tokens are kept now; 0 and a message when the pin was refused."""

    ticket: int
    num_tokens: int
    num_blocks: int = 0
    message: str | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nothing is on its way between tiers."""

    ticket: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One run of blocks."""

    serial: int
    parent: int  # 0: the root
    start: int  # tokens before this run
    num_tokens: int
    num_blocks: int
    num_children: int
    num_locks: int
    num_pins: int
    num_uses: int
    priority: int
    namespace: str  # hexadecimal; empty: shared by all
    age_seconds: float
    idle_seconds: float


class NodePage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Some nodes, in the order of their serials."""

    ticket: int
    nodes: list[NodeView]
    next: int | None  # None: there is no more


CacheAnswer = Residency | Moved | Forgotten | Pinned | NodePage | Settled


class CacheEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to blocks that follow each other, the last perhaps partial. Names are chained
    hashes.
    """

    kind: Literal["committed", "evicted", "promoted", "demoted", "copied"]
    tier: TierName  # where the blocks are now; of evicted ones, where they were
    namespace: bytes
    start: int  # tokens before the first block
    num_tokens: int
    parent: str | None = None  # the name of the block before the first
    names: list[str] = []


class CacheEvents(msgspec.Struct, frozen=True, tag=True):
    """What happened since the last such message. `num_lost` events did not fit into memory."""

    events: list[CacheEvent]
    num_lost: int = 0
