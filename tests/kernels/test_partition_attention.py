"""Attention of short spans by partitions, and the joining of these, against their definitions."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from kernels.attention_tiles import Scales, find_bases
from kernels.merge_partitions import merge_partitions, merge_partitions_reference
from kernels.paged_attention import attend, paged_attention, paged_attention_reference
from kernels.partition_attention import attend_partitions, attend_partitions_reference, choose_splits
from tests.kernels.attention_cases import GROUPED, PLAIN, SHAPES, assert_near, plan_of
from tests.kernels.pools import Shape, attention_case

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
E4M3 = torch.float8_e4m3fn
SPANS = [(1, 1), (16, 3), (17, 1), (64, 1), (65, 2), (37, 5), (100, 8), (258, 4)]
FORKS = [(300, 1), (531, 2), (540, 1), (540, 1), (257, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_short_spans_agree_with_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    case = attention_case(SPANS, shape, dtype)

    assert_near(paged_attention(*case.arguments()), paged_attention_reference(*case.arguments()), dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [Shape(8, 1, 96, 32), Shape(1, 1, 256, 128), Shape(40, 1, 64, 16)])
def test_heads_of_any_number_and_size_are_taken(shape: Shape) -> None:
    case = attention_case([(150, 1), (9, 2)], shape, torch.float32)

    assert_near(
        paged_attention(*case.arguments()), paged_attention_reference(*case.arguments()), torch.float32
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_several_share_is_read_together_and_comes_to_the_same_bits(dtype: torch.dtype) -> None:
    ahead = [(0, 0), (0, 256 // 16), (1, 512 // 16), (2, 512 // 16), (1, 240 // 16)]
    case = attention_case(FORKS, GROUPED, dtype, ahead)
    assert case.leaders.tolist() == [[0, 0], [0, 1], [0, 1], [0, 1], [4, 4]]

    found = paged_attention(*case.arguments())  # type: ignore[arg-type]

    assert_near(found, paged_attention_reference(*case.arguments()), dtype)  # type: ignore[arg-type]
    alone = replace(case, leaders=case.leaders[:, :0])
    assert torch.equal(found, paged_attention(*alone.arguments()))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_partitions_agree_with_their_reference_however_many_programs_share_them(dtype: torch.dtype) -> None:
    case = attention_case([(2000, 2), (300, 1), (600, 1)], PLAIN, dtype)
    work, scales = plan_of(case).short, Scales(case.scale)

    once, thrice = (
        attend_partitions(case.query, case.keys, case.values, work, scales, num_splits=number)
        for number in (1, 3)
    )

    expected = attend_partitions_reference(case.query, case.keys, case.values, work, scales)
    sees = work.visible > torch.arange(len(once.maxima))[:, None] * 256
    for first, second, definition in zip(once, thrice, expected, strict=True):
        assert torch.equal(first[sees], second[sees])
        assert_near(first[sees], definition[sees], dtype)
    merged, plain = torch.zeros_like(case.query), torch.zeros_like(case.query)
    merge_partitions(once, work, merged)
    merge_partitions_reference(once, work, plain)
    assert_near(merged, plain, dtype)


def test_many_partitions_are_joined_a_few_at_a_time() -> None:
    case = attention_case([(17 * 256 + 1, 1)], Shape(1, 1, 16, 128), torch.float32)
    case.keys[case.block_tables[0, -3:].long()] *= 2  # what comes last weighs more, but not all

    assert_near(
        paged_attention(*case.arguments()), paged_attention_reference(*case.arguments()), torch.float32
    )  # type: ignore[arg-type]


def test_great_scores_in_a_late_partition_do_not_overflow() -> None:
    case = attention_case([(513, 1)], PLAIN, torch.float32)
    case = replace(case, query=case.query * 1000)

    found = paged_attention(*case.arguments())  # type: ignore[arg-type]

    expected = paged_attention_reference(*case.arguments())  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_a_token_without_context_gets_zeros() -> None:
    case = attention_case([(20, 1), (1, 1)], PLAIN, torch.float32)
    case = replace(case, context_lens=torch.tensor([20, 0], dtype=torch.int32))

    assert paged_attention(*case.arguments())[1].eq(0).all()  # type: ignore[arg-type]


def test_padding_changes_nothing() -> None:
    case = attention_case([(20, 1), (30, 2)], PLAIN, torch.float32)
    padded = replace(case, query=torch.cat((case.query, case.query.new_full((4, 2, 16), torch.nan))))

    found = paged_attention(*padded.arguments())[:3]  # type: ignore[arg-type]

    assert torch.equal(found, paged_attention(*case.arguments()))  # type: ignore[arg-type]


def test_pools_of_8_bits_are_read_by_their_scales() -> None:
    case = attention_case([(70, 1), (20, 20)], PLAIN, torch.float32)
    scales = Scales(case.scale, keys=0.5, values=3.0)
    low = replace(case, keys=case.keys.to(E4M3), values=case.values.to(E4M3))
    exact = replace(case, keys=low.keys.float() * 0.5, values=low.values.float() * 3.0)

    from_bytes = attend(low.query, low.keys, low.values, plan_of(low), scales)

    assert_near(from_bytes, paged_attention_reference(*exact.arguments()), torch.float32)  # type: ignore[arg-type]


@triton.jit
def _bases_kernel(table_ptr, out_ptr, kv_heads: tl.constexpr, head_dim: tl.constexpr, tile: tl.constexpr):
    slots = tl.arange(0, tile)
    tl.store(out_ptr + slots, find_bases(table_ptr, slots, tile, 7, kv_heads, head_dim, 16))


def test_blocks_past_the_range_of_32_bits_are_found() -> None:
    table, out = torch.tensor([3_000_000, 5], dtype=torch.int32), torch.zeros(32, dtype=torch.int64)

    _bases_kernel[(1,)](table, out, kv_heads=8, head_dim=128, tile=32)

    assert out.tolist() == [(block * 8 + 7) * 128 * 16 for block in (3_000_000, 5) for _ in range(16)]


def test_splits_fill_a_gpu_and_bound_what_a_program_walks() -> None:
    assert choose_splits(8, 1, 8) == 8
    assert choose_splits(8, 256, 8) == 1
    assert choose_splits(512, 256, 8) == 16
