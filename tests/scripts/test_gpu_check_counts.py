"""Bytes and operations, counted by hand."""

import pytest

from engine.models.config import ModelConfig
from scripts.gpu_check import counts
from scripts.gpu_check.counts import Heads, Work
from scripts.gpu_check.peaks import Yardsticks
from scripts.gpu_check.shapes import FULL, Load

HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=8)  # queries of 32 numbers, keys and values of 32


def test_rows_are_read_and_written_once() -> None:
    assert counts.rms_norm(3, 10, itemsize=2) == Work(3 * 10 * 4 + 3 * 10 * 2 + 10 * 2)
    assert counts.add_rms_norm(3, 10, itemsize=2) == Work(3 * 10 * (2 + 4 + 4 + 2) + 10 * 2)
    assert counts.silu_and_mul(3, 10, itemsize=2) == Work(3 * 20 * 2 + 3 * 10 * 2)
    assert counts.moved(100) == Work(200)


def test_a_stored_token_is_its_heads_in_and_out_with_its_angles_and_slot() -> None:
    token = (32 + 32) * 2 + 32 * 2 + 32 * 2 + 2 * 4 * 4 + 4

    assert counts.rope_store(5, 5, HEADS, itemsize=2, pool_itemsize=2) == Work(5 * token)
    assert counts.rope_store(5, 5, HEADS, itemsize=2, pool_itemsize=1) == Work(5 * (token - 32))
    padded = counts.rope_store(5, 3, HEADS, itemsize=2, pool_itemsize=2)
    assert padded == Work(5 * token - 2 * (32 + 32) * 2)
    normed = counts.rope_store(5, 5, HEADS, itemsize=2, pool_itemsize=2, has_norms=True)
    assert normed == Work(5 * token + 2 * 8 * 2)


def test_decoding_reads_every_context_once() -> None:
    found = counts.attention(Load(3, 100), HEADS, itemsize=2, pool_itemsize=2)

    assert found == Work(3 * 100 * 32 * 2 + 2 * 3 * 32 * 2, 4 * 32 * 3 * 100)


def test_what_is_shared_is_read_once_and_computed_with_by_everybody() -> None:
    found = counts.attention(Load(3, 100, num_shared=64), HEADS, itemsize=2, pool_itemsize=1)

    assert found == Work((64 + 3 * 36) * 32 + 2 * 3 * 32 * 2, 4 * 32 * 3 * 100)


def test_a_prompts_token_sees_itself_and_those_before_it() -> None:
    whole = counts.attention(Load(1, 4, num_new=4), HEADS, itemsize=2, pool_itemsize=2)
    rest = counts.attention(Load(1, 4, num_new=2), HEADS, itemsize=2, pool_itemsize=2)

    assert whole == Work(4 * 32 * 2 + 2 * 4 * 32 * 2, 4 * 32 * (1 + 2 + 3 + 4))
    assert rest == Work(4 * 32 * 2 + 2 * 2 * 32 * 2, 4 * 32 * (3 + 4))


def test_a_window_bounds_what_is_read_and_seen() -> None:
    found = counts.attention(Load(2, 100, num_new=3), HEADS, itemsize=2, pool_itemsize=2, window=10)

    assert found == Work(2 * 12 * 32 * 2 + 2 * 6 * 32 * 2, 4 * 32 * 2 * 3 * 10)


def test_sums_of_partitions_go_to_memory_and_come_back() -> None:
    load, sum_bytes = Load(3, 300), 3 * 2 * 4 * (8 + 2) * 4
    whole = counts.attention(load, HEADS, itemsize=2, pool_itemsize=2)
    parts = counts.partition_attention(load, HEADS, itemsize=2, pool_itemsize=2, partition=256)
    merged = counts.merge_partitions(load, HEADS, itemsize=2, partition=256)

    assert parts == Work(whole.num_bytes - 3 * 32 * 2 + sum_bytes, whole.operations)
    assert merged == Work(sum_bytes + 3 * 32 * 2)


def test_logits_are_four_bytes_each() -> None:
    assert counts.sampling(2, 50) == Work(400)
    assert counts.sampling(2, 50, num_passes=2) == Work(800)
    assert counts.adjust_logits(3) == Work(3 * (8 + 12 + 8))


def test_a_forward_pass_reads_weights_once_and_computes_with_them_for_every_token() -> None:
    model = ModelConfig(
        family="tiny",
        vocab_size=100,
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        context_length=64,
        rms_eps=1e-5,
        rope_theta=1e4,
    )
    layers, head = 2 * (16 * 64 + 32 * 16 + 3 * 16 * 24), 100 * 16

    found = counts.forward(model, [(0, 3), (9, 10)], itemsize=2, num_draws=2)

    assert found.num_bytes == 2 * (layers + head) + 13 * 2 * 32 * 2
    assert found.operations == 2 * layers * 4 + 2 * head * 2 + 4 * 2 * 32 * (1 + 2 + 3 + 10)


def test_eight_billion_weights_are_sixteen_gigabytes() -> None:
    found = counts.forward(FULL.model, [(0, 1)], itemsize=2, num_draws=1)

    assert found.num_bytes == pytest.approx(15.0e9, rel=0.01)  # without the embedding, a gigabyte


def test_a_floor_is_what_takes_longer() -> None:
    yardsticks = Yardsticks(copy=1e12, matrix=1e15)

    assert yardsticks.floor(Work(2_000_000, 10**9)) == (2.0, "copy")
    assert yardsticks.floor(Work(2_000_000, 5 * 10**9)) == (5.0, "matrix")
