"""An engine's figures: what is measured from step to step, and all of it as one message."""

from engine.admission import Admission
from engine.messages import EngineStats, HistogramStats, TierStats
from engine.pace import StepPace
from engine.scheduler import Scheduler
from engine.traffic import Traffic
from prefix_cache.figures import BOUNDS, BlockAges
from prefix_cache.swap import SwapRates
from prefix_cache.tiers import TieredCache
from prefix_cache.tree import PrefixCache

__all__ = ["Statistics"]


class _Mean:
    """A value over steps."""

    def __init__(self) -> None:
        self.last = self.max = self._sum = 0.0
        self._count = 0

    def note(self, value: float) -> None:
        self.last = value
        self.max = max(self.max, value)
        self._sum += value
        self._count += 1

    @property
    def mean(self) -> float:
        return self._sum / self._count if self._count else 0.0


class Statistics:
    """Reads scheduler, cache and traffic; changes none of them."""

    def __init__(
        self,
        scheduler: Scheduler,
        cache: TieredCache,
        *,
        traffic: Traffic | None,
        rates: SwapRates,
        ages: BlockAges,
        pace: StepPace,
    ) -> None:
        self.num_queue_full = 0  # requests
        self.num_waited_too_long = 0
        self._scheduler = scheduler
        self._cache = cache
        self._traffic = traffic
        self._rates = rates
        self._ages = ages
        self._pace = pace
        self._waste = _Mean()  # 1 - tokens held / slots allocated
        self._saved_share = _Mean()  # of the blocks that would be held if none were shared
        self._num_saved = 0

    def note_step(self) -> None:
        """A step has been taken in."""
        num_held = self._cache.device.ledger.num_held
        if not num_held:
            self._waste.last, self._num_saved = 0.0, 0
            return
        self._waste.note(1.0 - self._scheduler.held_tokens() / (num_held * self._cache.block_size))
        num_in_tables = sum(len(each.lease.blocks) for each in self._scheduler.running if each.lease)
        # Pins and copies hold blocks too, which are in no table.
        self._num_saved = max(num_in_tables - num_held, 0)
        self._saved_share.note(self._num_saved / (num_held + self._num_saved))

    def collect(self, admission: Admission) -> EngineStats:
        """The figures as of the last step."""
        device, counters, moved = self._cache.device, self._scheduler.counters, self._cache.counters
        ledger = device.ledger
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(admission.waiting),
            num_blocks=device.num_blocks,
            num_free_blocks=ledger.num_free,
            num_cached_blocks=ledger.num_cached,
            num_held_blocks=ledger.num_held,
            kv_waste=self._waste.last,
            num_steps=counters.num_steps,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_cached_tokens=counters.num_cached_tokens,
            num_computed_prompt_tokens=counters.num_computed_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_preemptions=counters.num_preemptions,
            num_finished=counters.num_finished,
            num_aborted=counters.num_aborted,
            num_evicted_blocks=ledger.num_evicted,
            num_copied_blocks=device.num_copied,
            kv_waste_mean=self._waste.mean,
            kv_waste_max=self._waste.max,
            num_found_tokens={tier.value: count for tier, count in counters.num_found_tokens.items()},
            num_loading=self._scheduler.num_loading,
            num_pinned_blocks=ledger.num_pinned,
            num_waiting_writes=self._cache.num_waiting_writes,
            num_promoted_tokens=moved.num_promoted_tokens,
            num_recomputed_tokens=moved.num_recomputed_tokens,
            num_damaged_blocks=moved.num_damaged_blocks,
            num_parked=moved.num_parked,
            is_disk_usable=self._traffic is not None and self._traffic.is_disk_usable,
            tiers={tree.tier.value: _tier_stats(tree) for tree in (device, *self._cache.colder)},
            moves=[] if self._traffic is None else self._traffic.stats,
            rates=self._measured_rates(),
            ages=self._histograms(),
            num_saved_blocks=self._num_saved,
            saved_share_mean=self._saved_share.mean,
            step_budget=self._pace.budget() or 0,
            num_beam_forks=counters.num_beam_forks,
            num_proposed_tokens=counters.num_proposed_tokens,
            num_accepted_tokens=counters.num_accepted_tokens,
            num_queue_full=self.num_queue_full,
            num_waited_too_long=self.num_waited_too_long,
        )

    def _measured_rates(self) -> dict[str, float]:
        rates = {
            f"{source.value}>{target.value}": rate for (source, target), rate in self._rates.rates.items()
        }
        if self._rates.prefill_rate is not None:
            rates["prefill"] = self._rates.prefill_rate
        return rates

    def _histograms(self) -> dict[str, HistogramStats]:
        return {
            name: HistogramStats(bounds=list(BOUNDS), counts=list(each.counts), total=each.total)
            for name, each in (
                ("lifetime", self._ages.lifetime),
                ("idle_before_evict", self._ages.idle_before_evict),
                ("reuse_gap", self._ages.reuse_gap),
            )
        }


def _tier_stats(tree: PrefixCache) -> TierStats:
    ledger = tree.ledger
    return TierStats(
        num_blocks=tree.num_blocks,
        num_free=ledger.num_free,
        num_cached=ledger.num_cached,
        num_held=ledger.num_held,
        num_evicted=ledger.num_evicted,
    )
