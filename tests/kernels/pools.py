"""Small paged pools for kernel tests: shuffled blocks, and NaN wherever nothing was written.

Pools are in the order of the reference. In bfloat16 the CPU's kernels have another one, of pairs.
"""

from dataclasses import dataclass, replace

import torch

from kernels.byte_cache import STEP_BYTES, round_heads
from kernels.partitions import find_leaders


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
    leaders: torch.Tensor
    scale: float

    def arguments(self) -> tuple[torch.Tensor | float, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def on_cpu(self) -> "AttentionCase":
        """The same, with the pool in the order of the CPU's kernels."""
        return replace(self, keys=paired_keys(self.keys), values=paired_values(self.values))


def attention_case(
    spans: list[tuple[int, int]],
    shape: Shape,
    dtype: torch.dtype,
    shared: list[tuple[int, int]] | None = None,
) -> AttentionCase:
    """Spans are (context length, query tokens). Slots past a context hold NaN, in every block and beyond.

    `shared` says of each span an earlier one and how many leading blocks, full ones, both have.
    """
    generator = torch.Generator().manual_seed(5)
    size = shape.block_size
    shared = shared or [(0, 0)] * len(spans)
    counts = [-(-context // size) for context, _ in spans]
    num_blocks = sum(counts) + 2
    shuffled = torch.randperm(num_blocks, generator=generator)
    keys = torch.full((num_blocks, shape.num_kv_heads, shape.head_dim, size), torch.nan)
    values = torch.full((num_blocks, shape.num_kv_heads, size, shape.head_dim), torch.nan)
    tables = torch.zeros(len(spans), max(counts), dtype=torch.int32)
    for row, ((context, _), (earlier, num_shared)) in enumerate(zip(spans, shared, strict=True)):
        tables[row, :num_shared] = tables[earlier, :num_shared]
        blocks, shuffled = shuffled[: counts[row] - num_shared], shuffled[counts[row] - num_shared :]
        tables[row, num_shared : counts[row]] = blocks
        is_hidden = torch.arange(num_shared * size, counts[row] * size).view(-1, 1, size) >= context
        for pool, hidden in ((keys, is_hidden.unsqueeze(1)), (values, is_hidden.unsqueeze(3))):
            content = torch.randn(len(blocks), *pool.shape[1:], generator=generator)
            pool[blocks] = content.masked_fill(hidden, torch.nan)
    lengths = torch.tensor([0] + [query for _, query in spans])
    query = torch.randn(int(lengths.sum()), shape.num_heads, shape.head_dim, generator=generator)
    longest = max(context for context, _ in spans)
    return AttentionCase(
        query.to(dtype),
        keys.to(dtype),
        values.to(dtype),
        tables,
        torch.tensor([context for context, _ in spans], dtype=torch.int32),
        lengths.cumsum(0).int(),
        torch.from_numpy(find_leaders(tables.numpy(), longest, size)),
        shape.head_dim**-0.5,
    )


def paired_keys(keys: torch.Tensor) -> torch.Tensor:
    """A pool of keys in the order of the CPU's kernels: in bfloat16 two dimensions of a slot lie together."""
    if keys.dtype == torch.float32:
        return keys
    return keys.unflatten(2, (-1, 2)).transpose(3, 4).contiguous().view(keys.shape)


def paired_values(values: torch.Tensor) -> torch.Tensor:
    """A pool of values in that order: in bfloat16 two slots of a dimension lie together."""
    if values.dtype == torch.float32:
        return values
    return values.unflatten(2, (-1, 2)).transpose(3, 4).contiguous().view(values.shape)


def in_bytes(case: AttentionCase) -> tuple[AttentionCase, AttentionCase]:
    """A float32 case with its pools in 8 bits: in the order of the reference, with queries as the CPU rounds
    them, and in that of the CPU.
    """
    keys, key_steps = round_heads(case.keys.mT)
    values, value_steps = round_heads(case.values)
    keys = keys.mT.contiguous()
    plain = _with_steps(keys, key_steps), _with_steps(values, value_steps)
    ordered = (
        _with_steps((keys.view(torch.uint8) ^ 128).view(torch.int8).unflatten(2, (-1, 4)).mT, key_steps),
        _with_steps(values.unflatten(2, (-1, 4)).mT, value_steps),
    )
    shapes = [
        (*case.keys.shape[:2], case.keys.shape[2] + STEP_BYTES, case.keys.shape[3]),
        (*case.values.shape[:3], case.values.shape[3] + STEP_BYTES),
    ]
    first, second = (
        replace(case, keys=pools[0].view(shapes[0]), values=pools[1].view(shapes[1]))
        for pools in (plain, ordered)
    )
    codes, steps = round_heads(case.query)
    return replace(first, query=codes * steps[..., None]), second


def _with_steps(codes: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Each head's codes in the order in which they come, then its steps' bytes."""
    return torch.cat((codes.flatten(2), steps.contiguous().view(torch.int8).flatten(2)), 2)
