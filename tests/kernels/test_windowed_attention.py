"""Attention with a window of tokens against its definition."""

import pytest
import torch

from kernels.attention_tiles import Scales
from kernels.span_attention import attend_spans_reference
from kernels.windowed_attention import attend_window, attend_window_reference
from tests.kernels.attention_cases import GROUPED, PLAIN, SHAPES, assert_near, tiles_of
from tests.kernels.pools import AttentionCase, Shape, attention_case

SPANS = [(1, 1), (16, 16), (17, 1), (65, 65), (37, 5), (100, 60), (300, 1)]


def _attend(case: AttentionCase, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    found, expected = torch.full_like(case.query, torch.nan), torch.full_like(case.query, torch.nan)
    arguments = case.query, case.keys, case.values, tiles_of(case), Scales(case.scale)
    attend_window(*arguments, found, window=window)
    attend_window_reference(*arguments, expected, window=window)
    return found, expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [1, 20, 128])
def test_the_window_agrees_with_the_reference(shape: Shape, window: int, dtype: torch.dtype) -> None:
    found, expected = _attend(attention_case(SPANS, shape, dtype), window)

    assert_near(found, expected, dtype)


def test_a_window_of_one_gives_each_tokens_own_value() -> None:
    case = attention_case([(37, 37)], PLAIN, torch.float32)
    block = int(case.block_tables[0, 0])

    found, _ = _attend(case, 1)

    torch.testing.assert_close(found, case.values[block, :, :37].transpose(0, 1))


def test_a_window_as_long_as_the_context_hides_nothing() -> None:
    case = attention_case([(100, 60), (30, 1)], GROUPED, torch.float32)
    everything = torch.empty_like(case.query)
    attend_spans_reference(case.query, case.keys, case.values, tiles_of(case), Scales(case.scale), everything)

    found, _ = _attend(case, 100)

    assert_near(found, everything, torch.float32)


def test_what_lies_before_every_window_is_not_read() -> None:
    case = attention_case([(2000, 3)], PLAIN, torch.float32)
    case.keys[case.block_tables[0, :29].long()] = torch.nan
    case.values[case.block_tables[0, :29].long()] = torch.nan  # 29 blocks of 64 tokens end at 1,856

    found, expected = _attend(case, 100)

    assert not found.isnan().any()
    assert_near(found, _clean(expected, case), torch.float32)


def _clean(expected: torch.Tensor, case: AttentionCase) -> torch.Tensor:
    """The reference weighs all values, so NaN is taken out of them before."""
    case.keys.nan_to_num_(0.0)
    case.values.nan_to_num_(0.0)
    return _attend(case, 100)[1] if expected.isnan().any() else expected
