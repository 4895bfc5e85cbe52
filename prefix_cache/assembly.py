"""A whole cache from its sizes: the trees of all tiers, wired to each other, to figures and to events."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prefix_cache.disk_index import restore_tree
from prefix_cache.events import Events
from prefix_cache.eviction import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.figures import BlockAges, Observed
from prefix_cache.history import History
from prefix_cache.node import Node
from prefix_cache.plan import BlockId, BlockRecord, Tier
from prefix_cache.quota import Account, Quota
from prefix_cache.swap import SwapRates
from prefix_cache.tiers import TieredCache
from prefix_cache.tree import PrefixCache

__all__ = ["CacheSizes", "assemble"]

_POOLS = 2  # how many pools of blocks are remembered when the policy remembers nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """How large each tier is, in blocks; 0: there is none."""

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    num_disk_blocks: int = 0
    max_request_tokens: int = 0  # pins and floors together leave room for one such request
    quotas: Mapping[Account, Quota] = field(default_factory=dict)


def assemble(
    sizes: CacheSizes,
    *,
    policy: EvictionPolicy | None = None,
    remembers: History | None = None,
    rates: SwapRates | None = None,
    fingerprint: bytes = b"",
    records: Mapping[BlockId, BlockRecord] | None = None,
    disk_for_all: bool = False,
    park_after: float | None = None,
    now: float = 0.0,
) -> tuple[TieredCache, BlockAges]:
    """The cache, and the ages of the device's blocks.

    `remembers` is the policy's own history, if it has one; else one of a few pools is kept for explanations.
    `records` are what the disk held before; those that cannot be reached any more are to be erased (see
    TieredCache.take_erased).

    Raises ValueError when the floors leave no room for a request.
    """
    ages, events = BlockAges(), Events(sizes.block_size)
    history = None if remembers is not None else History(_POOLS * sizes.num_blocks, sizes.block_size)
    kept_free = _num_kept_free(sizes)

    def tree(tier: Tier, num_blocks: int) -> PrefixCache:
        def on_evict(node: Node, num_evicted: int) -> None:
            events.tell_eviction(tier, node, num_evicted)

        return PrefixCache(num_blocks, sizes.block_size, tier=tier, on_evict=on_evict)

    def on_device_evict(node: Node, num_evicted: int) -> None:
        ages.note_eviction(node, num_evicted)
        events.tell_eviction(Tier.DEVICE, node, num_evicted)

    device = PrefixCache(
        sizes.num_blocks,
        sizes.block_size,
        policy=Observed(policy or LeastRecentlyUsed(), ages, history),
        quotas=sizes.quotas,
        on_evict=on_device_evict,
    )
    colder = []
    if sizes.num_host_blocks:
        colder.append(tree(Tier.HOST, sizes.num_host_blocks))
    if sizes.num_disk_blocks:
        disk = tree(Tier.DISK, sizes.num_disk_blocks)
        disk.ledger.freed.update(restore_tree(disk, records or {}, fingerprint, now))
        colder.append(disk)
    cache = TieredCache(
        device,
        colder,
        rates=rates,
        fingerprint=fingerprint,
        disk_for_all=disk_for_all,
        park_after=park_after,
        remembers=remembers or history,
        num_kept_free=kept_free,
        events=events,
    )
    return cache, ages


def _num_kept_free(sizes: CacheSizes) -> int:
    """Blocks of one greatest request, which pins and floors must leave."""
    kept_free = -(-sizes.max_request_tokens // sizes.block_size)
    num_reserved = sum(quota.floor_blocks for quota in sizes.quotas.values())
    if num_reserved and num_reserved + kept_free > sizes.num_blocks:
        raise ValueError(
            f"the floors of all tenants take {num_reserved} blocks of {sizes.num_blocks}, and one request "
            f"may need {kept_free}: lower them, or give more memory"
        )
    return kept_free
