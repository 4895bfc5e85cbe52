"""Attention of long spans by tiles against its definition."""

from dataclasses import replace

import pytest
import torch

from kernels.attention_tiles import Scales
from kernels.paged_attention import paged_attention, paged_attention_reference
from kernels.span_attention import attend_spans, attend_spans_reference
from tests.kernels.attention_cases import GROUPED, PLAIN, SHAPES, assert_near, tiles_of
from tests.kernels.pools import Shape, attention_case

SPANS = [(16, 16), (17, 17), (64, 30), (65, 65), (37, 37), (100, 9), (3, 1), (300, 70)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_spans_of_any_length_agree_with_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    case = attention_case(SPANS, shape, dtype)

    found = paged_attention(*case.arguments())  # type: ignore[arg-type]

    assert_near(found, paged_attention_reference(*case.arguments()), dtype)  # type: ignore[arg-type]


def test_a_chunk_far_into_a_context_agrees_with_the_reference() -> None:
    case = attention_case([(2000, 40)], PLAIN, torch.float32)

    assert_near(
        paged_attention(*case.arguments()), paged_attention_reference(*case.arguments()), torch.float32
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [Shape(7, 1, 64, 16), Shape(1, 1, 256, 32), Shape(2, 1, 128, 128)])
def test_heads_of_any_number_and_size_are_taken(shape: Shape) -> None:
    case = attention_case([(75, 45)], shape, torch.float32)

    assert_near(
        paged_attention(*case.arguments()), paged_attention_reference(*case.arguments()), torch.float32
    )  # type: ignore[arg-type]


def test_tiles_write_what_they_name_and_nothing_else() -> None:
    case = attention_case([(40, 12), (5, 5)], GROUPED, torch.float32)
    padded = torch.cat((case.query, case.query.new_full((2, 6, 80), torch.nan)))
    tiles, scales = tiles_of(replace(case, query=padded)), Scales(case.scale)
    found, expected = torch.full_like(padded, 7.0), torch.full_like(padded, 7.0)

    attend_spans(padded, case.keys, case.values, tiles, scales, found)

    attend_spans_reference(padded, case.keys, case.values, tiles, scales, expected)
    assert_near(found, expected, torch.float32)
    assert found[17:].eq(7.0).all()


def test_a_span_alone_gets_the_very_bits_that_it_gets_in_company() -> None:
    case = attention_case([(30, 20), (90, 50)], GROUPED, torch.bfloat16)
    alone = replace(
        case,
        query=case.query[20:],
        block_tables=case.block_tables[1:],
        context_lens=case.context_lens[1:],
        cu_seqlens_q=torch.tensor([0, 50], dtype=torch.int32),
    )

    together = paged_attention(*case.arguments())[20:]  # type: ignore[arg-type]

    assert torch.equal(paged_attention(*alone.arguments()), together)  # type: ignore[arg-type]
