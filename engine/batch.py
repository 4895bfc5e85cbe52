"""A step as tensors: what the forward pass is told about its tokens.

Owns the flattening of spans into one ragged batch. Reads sequences and changes none; holds no reference to
them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from engine.step import Span
from engine.transfer import send
from kernels.partitions import find_leaders
from kernels.stack import StepTensors

__all__ = ["Batch", "blank_batch", "build_batch"]


@dataclass(frozen=True, slots=True)
class Batch(StepTensors):
    """The tensors of one step."""

    token_ids: torch.Tensor  # [num_tokens] int32
    positions: torch.Tensor  # [num_tokens] int32
    drawing_rows: torch.Tensor  # [num_rows] int64, the rows whose logits are sampled


def build_batch(
    spans: Sequence[Span], block_size: int, device: torch.device, proposed: Sequence[Sequence[int]] = ()
) -> Batch:
    """The spans in their order, one after the other; each with the tokens proposed after it, if any are.

    A span that draws is sampled after its last token, and after each proposed one.
    """
    proposed = proposed or [()] * len(spans)
    starts = np.fromiter((span.start for span in spans), np.int32, len(spans))
    num_proposed = np.fromiter(map(len, proposed), np.int32, len(spans))
    ends = np.fromiter((span.end for span in spans), np.int32, len(spans)) + num_proposed
    lengths = ends - starts
    cu_seqlens_q = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens_q[1:])
    rows = np.repeat(np.arange(len(spans)), lengths)  # each token's span
    positions = np.arange(cu_seqlens_q[-1], dtype=np.int32) - (cu_seqlens_q[:-1] - starts)[rows]
    tables = _block_tables(spans, ends, block_size)
    slots = tables[rows, positions // block_size] * block_size + positions % block_size
    arrays = (
        slots,
        tables,
        ends,
        cu_seqlens_q,
        find_leaders(tables, int(ends.max()), block_size),
        _token_ids(spans, proposed),
        positions,
        _drawing_rows(spans, cu_seqlens_q[1:], num_proposed),
    )
    return Batch(*send(arrays, device))


def blank_batch(num_tokens: int, block_size: int, device: torch.device) -> Batch:
    """One prompt of zeros that reads block 0 over and over, and stores nothing."""
    counts = torch.arange(num_tokens, dtype=torch.int32, device=device)
    num_blocks = -(-num_tokens // block_size)
    return Batch(
        token_ids=counts * 0,
        positions=counts,
        slot_mapping=counts * 0 - 1,
        block_tables=torch.zeros(1, num_blocks, dtype=torch.int32, device=device),
        context_lens=counts[-1:] + 1,
        cu_seqlens_q=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        leaders=torch.zeros(1, 0, dtype=torch.int32, device=device),
        drawing_rows=counts[-1:].long(),
    )


def _token_ids(spans: Sequence[Span], proposed: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    ids = array("i")
    for span, ahead in zip(spans, proposed, strict=True):
        ids.extend(span.sequence.tokens[span.start : span.end])
        ids.extend(ahead)
    return np.array(ids, np.int32)


def _drawing_rows(
    spans: Sequence[Span], ends: npt.NDArray[np.int32], num_proposed: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    """`ends`: where each span's rows end."""
    rows = [
        np.arange(end - num_ahead - 1, end, dtype=np.int64)
        for span, end, num_ahead in zip(spans, ends.tolist(), num_proposed.tolist(), strict=True)
        if span.draws
    ]
    return np.concatenate(rows) if rows else np.empty(0, np.int64)


def _block_tables(
    spans: Sequence[Span], ends: npt.NDArray[np.int32], block_size: int
) -> npt.NDArray[np.int32]:
    """Only the blocks that hold tokens up to each span's end: a table may run ahead of its sequence."""
    counts = -(-ends // block_size)
    blocks = [span.sequence.block_table[:count] for span, count in zip(spans, counts.tolist(), strict=True)]
    tables = np.zeros((len(spans), int(counts.max())), np.int32)
    flat = np.fromiter(chain.from_iterable(blocks), np.int32, int(counts.sum()))
    tables[np.arange(tables.shape[1]) < counts[:, None]] = flat
    return tables
