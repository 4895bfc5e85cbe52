"""Attention with capped scores against its definition."""

from dataclasses import replace

import pytest
import torch

from kernels.attention_tiles import Scales
from kernels.capped_attention import attend_capped, attend_capped_reference
from kernels.paged_attention import paged_attention_reference
from tests.kernels.attention_cases import GROUPED, SHAPES, assert_near, tiles_of
from tests.kernels.pools import AttentionCase, Shape, attention_case

SPANS = [(1, 1), (16, 16), (17, 1), (65, 65), (37, 5), (100, 60), (300, 1)]


def _attend(case: AttentionCase, cap: float) -> tuple[torch.Tensor, torch.Tensor]:
    found, expected = torch.full_like(case.query, torch.nan), torch.full_like(case.query, torch.nan)
    arguments = case.query, case.keys, case.values, tiles_of(case), Scales(case.scale)
    attend_capped(*arguments, found, cap=cap)
    attend_capped_reference(*arguments, expected, cap=cap)
    return found, expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cap_agrees_with_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    found, expected = _attend(attention_case(SPANS, shape, dtype), 2.0)

    assert_near(found, expected, dtype)


def test_a_high_cap_changes_little() -> None:
    case = attention_case([(100, 60), (30, 1)], GROUPED, torch.float32)

    found, _ = _attend(case, 1000.0)

    expected = paged_attention_reference(*case.arguments())  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)


def test_scores_far_past_the_cap_neither_overflow_nor_count_more_than_it() -> None:
    case = attention_case([(100, 60), (30, 1)], GROUPED, torch.float32)
    case = replace(case, query=case.query * 10_000)

    found, expected = _attend(case, 5.0)

    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
