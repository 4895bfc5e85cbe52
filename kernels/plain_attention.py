"""Attention of one span in plain torch: what the references of the GPU's attention kernels are made of."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kernels.attention_tiles import Scales
from kernels.attention_work import QueryTiles

__all__ = ["PlainSpan", "read_spans", "weigh"]


class PlainSpan(NamedTuple):
    """A span beside its context, in float32, scaled."""

    tokens: slice  # of the step
    distances: torch.Tensor  # [span, context], by how many tokens a key is before a query
    scores: torch.Tensor  # [num_heads, span, context], nothing hidden
    values: torch.Tensor  # [num_heads, context, head_dim]


def read_spans(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    tiles: QueryTiles,
    scales: Scales,
) -> Iterator[PlainSpan]:
    """Those of the tiles, in order."""
    group, block_size = query.shape[1] // keys.shape[1], keys.shape[3]
    for sequence in sorted(set(tiles.sequences.tolist()) - {-1}):
        start, end = tiles.cu_seqlens_q[sequence : sequence + 2].tolist()
        context = int(tiles.context_lens[sequence])
        seen = torch.arange(context, device=query.device)
        blocks, places = tiles.block_tables[sequence].long()[seen // block_size], seen % block_size
        key, value = (
            heads.float().repeat_interleave(group, dim=1).transpose(0, 1)  # [num_heads, context, head_dim]
            for heads in (keys[blocks, :, :, places], values[blocks, :, places])
        )
        scores = query[start:end].float().transpose(0, 1) @ key.mT * (scales.scores * scales.keys)
        distances = torch.arange(context - (end - start), context, device=query.device)[:, None] - seen
        yield PlainSpan(slice(start, end), distances, scores, value * scales.values)


def weigh(span: PlainSpan, hidden: torch.Tensor) -> torch.Tensor:  # [span, num_heads, head_dim]
    """Values by the softmax of what is not hidden."""
    weights = span.scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return (weights @ span.values).transpose(0, 1)
