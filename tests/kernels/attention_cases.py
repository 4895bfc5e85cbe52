"""What tests of the GPU's attention kernels begin with: cases, a step's work, and how near is near."""

import torch

from kernels.attention_tiles import HeadShape
from kernels.attention_work import AttentionWork, QueryTiles, plan_attention, plan_tiles
from tests.kernels.pools import AttentionCase, Shape

__all__ = ["GROUPED", "PLAIN", "SHAPES", "assert_near", "plan_of", "tiles_of"]

GROUPED, PLAIN = Shape(6, 2, 80, 16), Shape(2, 2, 16, 64)
SHAPES = [GROUPED, PLAIN]


def plan_of(case: AttentionCase) -> AttentionWork:
    """The work of a case's own tensors."""
    return plan_attention(
        case.block_tables,
        case.context_lens,
        case.cu_seqlens_q,
        case.leaders,
        len(case.query),
        HeadShape.of(case.query, case.keys),
    )


def tiles_of(case: AttentionCase) -> QueryTiles:
    """Every span of a case in tiles."""
    shape = HeadShape.of(case.query, case.keys)
    return plan_tiles(case.block_tables, case.context_lens, case.cu_seqlens_q, len(case.query), shape)


def assert_near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Float32 number by number, 16 bits as a whole: each number is rounded, and so are the weights."""
    if dtype == torch.float32:
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-5)
    else:
        assert not found.isnan().any()
        distance = (found.float() - expected.float()).norm() / expected.float().norm()
        assert distance < (1e-2 if dtype == torch.bfloat16 else 2e-3)
