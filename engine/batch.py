"""A step as tensors: what the forward pass is told about its tokens.

Owns the flattening of spans into one ragged batch. Reads sequences and changes none; holds no reference to
them.
"""

from array import array
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from engine.step import Span, Step

__all__ = ["Batch", "build_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one step; a sequence here is one span. See docs/data-layout.md."""

    token_ids: torch.Tensor  # [num_tokens] int32
    positions: torch.Tensor  # [num_tokens] int32
    slot_mapping: torch.Tensor  # [num_tokens] int32
    block_tables: torch.Tensor  # [num_sequences, max_blocks] int32; past a sequence's blocks, zeros
    context_lens: torch.Tensor  # [num_sequences] int32, this step's tokens included
    cu_seqlens_q: torch.Tensor  # [num_sequences + 1] int32
    drawing_rows: torch.Tensor  # [num_draws] int64, the rows whose logits are sampled


def build_batch(step: Step, block_size: int, device: torch.device) -> Batch:
    """The spans in their order, one after the other."""
    spans = step.spans
    starts = np.fromiter((span.start for span in spans), np.int32, len(spans))
    ends = np.fromiter((span.end for span in spans), np.int32, len(spans))
    lengths = ends - starts
    cu_seqlens_q = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens_q[1:])
    rows = np.repeat(np.arange(len(spans)), lengths)  # each token's span
    positions = np.arange(cu_seqlens_q[-1], dtype=np.int32) - (cu_seqlens_q[:-1] - starts)[rows]
    tables = _block_tables(spans, ends, block_size)
    slots = tables[rows, positions // block_size] * block_size + positions % block_size
    draws = np.fromiter((span.draws for span in spans), np.bool_, len(spans))
    arrays = (
        _token_ids(spans),
        positions,
        slots,
        tables,
        ends,
        cu_seqlens_q,
        cu_seqlens_q[1:][draws].astype(np.int64) - 1,
    )
    return Batch(*(torch.from_numpy(values).to(device) for values in arrays))


def _token_ids(spans: tuple[Span, ...]) -> npt.NDArray[np.int32]:
    ids = array("i")
    for span in spans:
        ids.extend(span.sequence.tokens[span.start : span.end])
    return np.array(ids, np.int32)


def _block_tables(
    spans: tuple[Span, ...], ends: npt.NDArray[np.int32], block_size: int
) -> npt.NDArray[np.int32]:
    """Only the blocks that hold tokens up to each span's end: a table may run ahead of its sequence."""
    counts = -(-ends // block_size)
    blocks = [span.sequence.block_table[:count] for span, count in zip(spans, counts.tolist(), strict=True)]
    tables = np.zeros((len(spans), int(counts.max())), np.int32)
    flat = np.fromiter(chain.from_iterable(blocks), np.int32, int(counts.sum()))
    tables[np.arange(tables.shape[1]) < counts[:, None]] = flat
    return tables
