"""The engine's figures in Prometheus' words."""

import pytest
from prometheus_client import CollectorRegistry

from engine.messages import EngineStats, HistogramStats, MoveStats, TierStats
from gateway.engine_metrics import EngineFamilies

STATS = EngineStats(
    num_running=3,
    num_waiting=2,
    num_blocks=10,
    num_free_blocks=4,
    num_cached_blocks=1,
    num_held_blocks=5,
    kv_waste=0.25,
    num_steps=7,
    num_prompt_tokens=100,
    num_cached_tokens=70,
    num_computed_prompt_tokens=30,
    num_generated_tokens=11,
    num_preemptions=1,
    num_finished=2,
    num_aborted=3,
    num_evicted_blocks=6,
    num_copied_blocks=8,
    kv_waste_mean=0.1,
    kv_waste_max=0.3,
    num_found_tokens={"device": 40, "host": 20, "disk": 10},
    num_loading=1,
    num_damaged_blocks=9,
    is_disk_usable=True,
    tiers={
        "device": TierStats(num_blocks=10, num_free=4, num_cached=1, num_held=5, num_evicted=6),
        "disk": TierStats(num_blocks=20, num_free=20, num_cached=0, num_held=0, num_evicted=0),
    },
    moves=[MoveStats(source="device", target="disk", num_blocks=5, num_bytes=500, seconds=0.5, num_failed=1)],
    rates={"disk>device": 1e9, "prefill": 800.0},
    num_saved_blocks=12,
    saved_share_mean=0.4,
    step_budget=96,
    num_beam_forks=13,
    num_proposed_tokens=80,
    num_accepted_tokens=60,
    num_queue_full=5,
    num_waited_too_long=4,
    ages={"lifetime": HistogramStats(bounds=[1.0, 10.0], counts=[2, 3, 1], total=55.0)},
)


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineFamilies(STATS))
    return registry


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("num_requests_running", {}, 3),
        ("num_requests_loading", {}, 1),
        ("kv_cache_usage_perc", {}, 0.5),
        ("kv_disk_usable", {}, 1),
        ("prompt_tokens_total", {}, 100),
        ("prompt_tokens_cached_total", {}, 70),
        ("prefix_cache_queries_total", {}, 100),
        ("prefix_cache_hits_total", {}, 40),
        ("external_prefix_cache_queries_total", {}, 60),
        ("external_prefix_cache_hits_total", {}, 30),
        ("prompt_tokens_by_source_total", {"source": "host"}, 20),
        ("prompt_tokens_by_source_total", {"source": "computed"}, 30),
        ("kv_blocks", {"tier": "device", "state": "held"}, 5),
        ("kv_blocks", {"tier": "disk", "state": "free"}, 20),
        ("kv_evicted_blocks_total", {"tier": "device"}, 6),
        ("kv_moved_blocks_total", {"source": "device", "target": "disk"}, 5),
        ("kv_moved_bytes_total", {"source": "device", "target": "disk"}, 500),
        ("kv_move_seconds_total", {"source": "device", "target": "disk"}, 0.5),
        ("kv_failed_moves_total", {"source": "device", "target": "disk"}, 1),
        ("kv_rate", {"path": "prefill"}, 800.0),
        ("kv_saved_blocks", {}, 12),
        ("kv_saved_mean_ratio", {}, 0.4),
        ("step_budget_tokens", {}, 96),
        ("beam_forks_total", {}, 13),
        ("spec_decode_num_draft_tokens_total", {}, 80),
        ("spec_decode_num_accepted_tokens_total", {}, 60),
        ("admission_rejections_total", {"reason": "queue_full"}, 5),
        ("admission_rejections_total", {"reason": "waited_too_long"}, 4),
        ("kv_block_lifetime_seconds_bucket", {"le": "1.0"}, 2),
        ("kv_block_lifetime_seconds_bucket", {"le": "10.0"}, 5),
        ("kv_block_lifetime_seconds_bucket", {"le": "+Inf"}, 6),
        ("kv_block_lifetime_seconds_count", {}, 6),
        ("kv_block_lifetime_seconds_sum", {}, 55.0),
    ],
)
def test_a_figure_has_its_name_and_value(
    registry: CollectorRegistry, name: str, labels: dict[str, str], value: float
) -> None:
    assert registry.get_sample_value(f"stemma_{name}", labels) == value
