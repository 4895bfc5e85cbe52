"""What the attention kernels of query tiles share: scales, scores of any size, what is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from kernels.attention_tiles import Scales
from kernels.attention_work import QueryTiles
from kernels.capped_attention import attend_capped, attend_capped_reference
from kernels.span_attention import attend_spans, attend_spans_reference
from kernels.windowed_attention import attend_window, attend_window_reference
from tests.kernels.attention_cases import GROUPED, tiles_of
from tests.kernels.pools import AttentionCase, Shape, attention_case

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, QueryTiles, Scales, torch.Tensor], None]
BOTH: dict[str, tuple[Attend, Attend]] = {
    "spans": (attend_spans, attend_spans_reference),
    "window": (partial(attend_window, window=50), partial(attend_window_reference, window=50)),
    "cap": (partial(attend_capped, cap=400.0), partial(attend_capped_reference, cap=400.0)),
}


def _assert_agree(name: str, case: AttentionCase, scales: Scales) -> None:
    found, expected = torch.full_like(case.query, torch.nan), torch.full_like(case.query, torch.nan)
    for attend, out in zip(BOTH[name], (found, expected), strict=True):
        attend(case.query, case.keys, case.values, tiles_of(case), scales, out)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", BOTH)
def test_pools_of_8_bits_are_read_by_their_scales(name: str) -> None:
    case = attention_case([(100, 60), (17, 1)], GROUPED, torch.float32)
    keys, values = (pool.to(torch.float8_e4m3fn) for pool in (case.keys, case.values))

    _assert_agree(name, replace(case, keys=keys, values=values), Scales(case.scale, keys=0.5, values=3.0))


@pytest.mark.parametrize("name", BOTH)
def test_scores_far_below_zero_count_beside_each_other_alone(name: str) -> None:
    case = attention_case([(100, 60), (17, 1)], GROUPED, torch.float32)
    query, keys = torch.full_like(case.query, 30.0), case.keys.abs().neg()

    _assert_agree(name, replace(case, query=query, keys=keys), Scales(case.scale))


@pytest.mark.parametrize("place", range(5))
def test_tensors_with_gaps_are_refused(place: int) -> None:
    case = attention_case([(37, 20)], GROUPED, torch.float32)
    tensors = [case.query, case.keys, case.values, case.block_tables, torch.empty_like(case.query)]
    tensors[place] = torch.stack((tensors[place], tensors[place]), dim=-1)[..., 0]
    query, keys, values, tables, out = tensors

    with pytest.raises(AssertionError, match="from the first"):
        attend_spans(query, keys, values, replace(tiles_of(case), block_tables=tables), Scales(1.0), out)


def test_blocks_of_fewer_tokens_than_are_read_at_once_are_refused() -> None:
    case = attention_case([(37, 20)], Shape(2, 2, 16, 8), torch.float32)

    with pytest.raises(AssertionError, match="16 slots"):
        attend_spans(case.query, case.keys, case.values, tiles_of(case), Scales(1.0), case.query)
