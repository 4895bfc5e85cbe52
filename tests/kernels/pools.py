"""Small paged pools for kernel tests: shuffled blocks, and NaN wherever nothing was written."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads and blocks of a pool."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """The arguments of paged attention, in its order."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    scale: float

    def arguments(self) -> tuple[torch.Tensor | float, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)


def attention_case(spans: list[tuple[int, int]], shape: Shape, dtype: torch.dtype) -> AttentionCase:
    """Spans are (context length, query tokens). Slots past a context hold NaN, in every block and beyond."""
    generator = torch.Generator().manual_seed(5)
    size = shape.block_size
    counts = [-(-context // size) for context, _ in spans]
    num_blocks = sum(counts) + 2
    shuffled = torch.randperm(num_blocks, generator=generator)
    keys = torch.full((num_blocks, shape.num_kv_heads, shape.head_dim, size), torch.nan)
    values = torch.full((num_blocks, shape.num_kv_heads, size, shape.head_dim), torch.nan)
    tables = torch.zeros(len(spans), max(counts), dtype=torch.int32)
    for row, ((context, _), count) in enumerate(zip(spans, counts, strict=True)):
        blocks, shuffled = shuffled[:count], shuffled[count:]
        tables[row, :count] = blocks
        for position in range(context):
            block, place = blocks[position // size], position % size
            keys[block, :, :, place] = torch.randn(shape.num_kv_heads, shape.head_dim, generator=generator)
            values[block, :, place] = torch.randn(shape.num_kv_heads, shape.head_dim, generator=generator)
    lengths = torch.tensor([0] + [query for _, query in spans])
    query = torch.randn(int(lengths.sum()), shape.num_heads, shape.head_dim, generator=generator)
    return AttentionCase(
        query.to(dtype),
        keys.to(dtype),
        values.to(dtype),
        tables,
        torch.tensor([context for context, _ in spans], dtype=torch.int32),
        lengths.cumsum(0).int(),
        shape.head_dim**-0.5,
    )
