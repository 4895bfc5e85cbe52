"""The engine's figures as families for Prometheus, made anew for each scrape.

Where a figure means the same as one of vLLM's it has the same name, after another prefix.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.messages import EngineStats, HistogramStats

__all__ = ["EngineFamilies"]

_GAUGES = {
    "num_running": ("num_requests_running", "Sequences in the running batch."),
    "num_waiting": ("num_requests_waiting", "Sequences in the queue."),
    "num_loading": ("num_requests_loading", "Running sequences whose blocks are on their way."),
    "num_pinned_blocks": ("kv_pinned_blocks", "Blocks of the device that pins keep."),
    "num_waiting_writes": ("kv_waiting_writes", "Prefixes that wait to be written to a colder tier."),
    "is_disk_usable": ("kv_disk_usable", "1 while the disk tier takes blocks."),
    "kv_waste": ("kv_waste_ratio", "1 - tokens held / slots allocated, over held blocks."),
    "kv_waste_mean": ("kv_waste_mean_ratio", "The mean of kv_waste_ratio over steps."),
    "kv_waste_max": ("kv_waste_max_ratio", "The greatest kv_waste_ratio of any step."),
    "num_saved_blocks": ("kv_saved_blocks", "More blocks that would be held if sequences shared none."),
    "saved_share_mean": (
        "kv_saved_mean_ratio",
        "The mean over steps of saved blocks / (held and saved ones).",
    ),
    "step_budget": ("step_budget_tokens", "Tokens that a step may compute while answers grow."),
}
_COUNTERS = {
    "num_steps": ("engine_steps", "Forward passes."),
    "num_prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "num_cached_tokens": ("prompt_tokens_cached", "Prompt tokens that were found, in whatever tier."),
    "num_computed_prompt_tokens": (
        "computed_prompt_tokens",
        "Prompt tokens computed, preempted work included.",
    ),
    "num_generated_tokens": ("generation_tokens", "Tokens generated."),
    "num_preemptions": ("num_preemptions", "Sequences that had to give their blocks back."),
    "num_finished": ("sequences_finished", "Sequences that ended by themselves."),
    "num_aborted": (
        "sequences_aborted",
        "Sequences that were ended early: by who asked, or at a stop string.",
    ),
    "num_copied_blocks": ("kv_copied_blocks", "Blocks copied on write."),
    "num_promoted_tokens": ("kv_promoted_tokens", "Tokens brought to the device from colder tiers."),
    "num_recomputed_tokens": (
        "kv_recomputed_tokens",
        "Tokens that a colder tier had, and that were cheaper to compute again.",
    ),
    "num_damaged_blocks": ("kv_damaged_blocks", "Blocks on disk that were found damaged, and removed."),
    "num_beam_forks": ("beam_forks", "Hypotheses that went on from another's blocks."),
    "num_proposed_tokens": ("spec_decode_num_draft_tokens", "Tokens proposed by speculation."),
    "num_accepted_tokens": ("spec_decode_num_accepted_tokens", "Proposed tokens that held."),
    "num_parked": ("kv_parked", "Conversations that left the device because they rested."),
}
_AGES = {
    "lifetime": ("kv_block_lifetime_seconds", "How long evicted blocks had lived."),
    "idle_before_evict": ("kv_block_idle_before_evict_seconds", "How long evicted blocks had rested."),
    "reuse_gap": ("kv_block_reuse_gap_seconds", "How long blocks had rested when they were used again."),
}


class EngineFamilies:
    """One engine's figures, as prometheus_client collects them."""

    def __init__(self, stats: EngineStats) -> None:
        self.stats = stats

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        stats = self.stats
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"stemma_{name}", text, value=getattr(stats, field))
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"stemma_{name}", text, value=getattr(stats, field))
        used = stats.num_held_blocks / stats.num_blocks if stats.num_blocks else 0.0
        yield GaugeMetricFamily(
            "stemma_kv_cache_usage_perc", "Held blocks of the device; 1 is all.", value=used
        )
        yield self._rejections()
        yield from self._sources()
        yield from self._tiers()
        yield from self._moves()
        for name, ages in stats.ages.items():
            yield _histogram(*_AGES[name], ages)

    def _rejections(self) -> Metric:
        rejections = CounterMetricFamily(
            "stemma_admission_rejections", "Requests refused because of what waits.", labels=("reason",)
        )
        rejections.add_metric(("queue_full",), self.stats.num_queue_full)
        rejections.add_metric(("waited_too_long",), self.stats.num_waited_too_long)
        return rejections

    def _sources(self) -> Iterator[Metric]:
        stats, found = self.stats, self.stats.num_found_tokens
        by_source = CounterMetricFamily(
            "stemma_prompt_tokens_by_source", "Prompt tokens by where they came from.", labels=("source",)
        )
        for source, num_tokens in found.items():
            by_source.add_metric((source,), num_tokens)
        by_source.add_metric(("computed",), stats.num_prompt_tokens - sum(found.values()))
        yield by_source
        on_device = found.get("device", 0)
        for name, text, value in (
            ("prefix_cache_queries", "Tokens looked up on the device.", stats.num_prompt_tokens),
            ("prefix_cache_hits", "Tokens found on the device.", on_device),
            (
                "external_prefix_cache_queries",
                "Tokens looked up on colder tiers.",
                stats.num_prompt_tokens - on_device,
            ),
            (
                "external_prefix_cache_hits",
                "Tokens found on colder tiers.",
                sum(found.values()) - on_device,
            ),
        ):
            yield CounterMetricFamily(f"stemma_{name}", text, value=value)

    def _tiers(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily("stemma_kv_blocks", "Blocks of keys and values.", labels=("tier", "state"))
        evicted = CounterMetricFamily(
            "stemma_kv_evicted_blocks", "Cached blocks given up for others.", labels=("tier",)
        )
        for tier, each in self.stats.tiers.items():
            for state, count in (
                ("free", each.num_free),
                ("cached", each.num_cached),
                ("held", each.num_held),
            ):
                blocks.add_metric((tier, state), count)
            evicted.add_metric((tier,), each.num_evicted)
        yield blocks
        yield evicted

    def _moves(self) -> Iterator[Metric]:
        ends = ("source", "target")
        blocks = CounterMetricFamily("stemma_kv_moved_blocks", "Blocks moved between tiers.", labels=ends)
        bytes_ = CounterMetricFamily("stemma_kv_moved_bytes", "Bytes moved between tiers.", labels=ends)
        seconds = CounterMetricFamily("stemma_kv_move_seconds", "Time that moving took.", labels=ends)
        failed = CounterMetricFamily("stemma_kv_failed_moves", "Moves that ended early.", labels=ends)
        for move in self.stats.moves:
            labels = (move.source, move.target)
            blocks.add_metric(labels, move.num_blocks)
            bytes_.add_metric(labels, move.num_bytes)
            seconds.add_metric(labels, move.seconds)
            failed.add_metric(labels, move.num_failed)
        yield from (blocks, bytes_, seconds, failed)
        rates = GaugeMetricFamily(
            "stemma_kv_rate",
            "What swapping or computing is chosen by: bytes a second between tiers, prefill tokens a second.",
            labels=("path",),
        )
        for path, rate in self.stats.rates.items():
            rates.add_metric((path,), rate)
        yield rates


def _histogram(name: str, text: str, stats: HistogramStats) -> Metric:
    buckets, count = [], 0
    for bound, counted in zip([*map(str, stats.bounds), "+Inf"], stats.counts, strict=True):
        count += counted
        buckets.append((bound, float(count)))
    return HistogramMetricFamily(f"stemma_{name}", text, buckets=buckets, sum_value=stats.total)
