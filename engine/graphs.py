"""Decoding by replaying recordings: one launch a step, where a forward pass is hundreds.

A recording is of a step of so many sequences, one token each, over tensors of its own. A step of as many or
fewer is copied into them, and padded with sequences that store nothing and that nobody reads. Any other step
is computed as it would be without recordings.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from engine.batch import Batch
from engine.kv_pool import KVPool
from kernels.partitions import PARTITION_TOKENS

__all__ = ["Forward", "GraphedDecoder", "Record", "record_graph", "recorded_sizes"]

_FINE, _COARSE = 8, 16  # recorded sizes are multiples of these, up to and past 64 sequences

Record = Callable[[Callable[[], torch.Tensor]], tuple[Callable[[], None], torch.Tensor]]
"""Takes what is to be recorded; gives what replays it, and the tensor that every replay writes."""


class Forward(Protocol):
    """A decoder, as a step needs it."""

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """The hidden state of every token: [num_tokens, hidden_size]. Writes the tokens' slots."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Each row's scores over the vocabulary: [num_rows, vocab_size] float32."""
        ...


def recorded_sizes(max_sequences: int) -> list[int]:
    """How many sequences the recordings have: few enough to record soon, close enough to waste little."""
    sizes = {1, 2, 4, max_sequences, *range(_FINE, 65, _FINE), *range(64, max_sequences, _COARSE)}
    return sorted(size for size in sizes if size <= max_sequences)


class GraphedDecoder:
    """A decoder whose decoding steps over one pool are recorded when it is made."""

    def __init__(
        self,
        decoder: Forward,
        pool: KVPool,
        *,
        max_sequences: int,
        max_context: int,
        record: Record,
        progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    ) -> None:
        """`progress` wraps the sizes, so that whoever waits for the recordings sees them pass."""
        self._decoder = decoder
        self._pool = pool
        self._inputs = _Inputs(max_sequences, -(-max_context // pool.block_size), pool)
        self._sizes = recorded_sizes(max_sequences)
        # The largest comes first: the smaller ones find its memory.
        self._recordings = {
            size: record(self._forward_of(size)) for size in progress(list(reversed(self._sizes)))
        }

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """As `Forward` has it. What a replay gives is overwritten by the next one."""
        num_sequences, num_blocks = batch.block_tables.shape
        is_recorded = (
            pool is self._pool
            and len(batch.token_ids) == num_sequences <= self._sizes[-1]
            and num_blocks <= self._inputs.max_blocks
        )
        if not is_recorded:
            return self._decoder.forward(batch, pool)
        size = self._sizes[bisect_left(self._sizes, num_sequences)]
        self._inputs.fill(batch, size)
        replay, hidden = self._recordings[size]
        replay()
        return hidden[:num_sequences]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Forward` has it."""
        return self._decoder.logits(hidden)

    def _forward_of(self, size: int) -> Callable[[], torch.Tensor]:
        batch = self._inputs.first(size)
        return lambda: self._decoder.forward(batch, self._pool)


class _Inputs:
    """The tensors that recordings read: those of the largest one, of which the others use the first rows."""

    def __init__(self, max_sequences: int, max_blocks: int, pool: KVPool) -> None:
        def zeros(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=pool.device)

        self.max_blocks = max_blocks
        places = torch.arange(max_sequences + 1, dtype=torch.int32, device=pool.device)
        num_partitions = 0
        if PARTITION_TOKENS % pool.block_size == 0:
            num_partitions = max_blocks * pool.block_size // PARTITION_TOKENS
        self._alone = places[:-1, None].expand(-1, num_partitions)  # everybody leads itself
        self._all = Batch(
            token_ids=zeros(max_sequences),
            positions=zeros(max_sequences),
            slot_mapping=zeros(max_sequences) - 1,
            block_tables=zeros(max_sequences, max_blocks),
            context_lens=zeros(max_sequences),
            cu_seqlens_q=places,
            leaders=self._alone.clone(),
            drawing_rows=places[:-1].long(),
        )

    def first(self, size: int) -> Batch:
        """A step of so many sequences."""
        everything = self._all
        return Batch(
            token_ids=everything.token_ids[:size],
            positions=everything.positions[:size],
            slot_mapping=everything.slot_mapping[:size],
            block_tables=everything.block_tables[:size],
            context_lens=everything.context_lens[:size],
            cu_seqlens_q=everything.cu_seqlens_q[: size + 1],
            leaders=everything.leaders[:size],
            drawing_rows=everything.drawing_rows[:size],
        )

    def fill(self, batch: Batch, size: int) -> None:
        """Make the first rows a step's, and those up to `size` padding, which sees nothing."""
        num_sequences, num_blocks = batch.block_tables.shape
        num_partitions = batch.leaders.shape[1]
        to, padding = self.first(size), slice(num_sequences, size)
        to.token_ids[:num_sequences] = batch.token_ids
        to.positions[:num_sequences] = batch.positions
        to.slot_mapping[:num_sequences] = batch.slot_mapping
        to.block_tables[:num_sequences, :num_blocks] = batch.block_tables
        to.context_lens[:num_sequences] = batch.context_lens
        to.leaders.copy_(self._alone[:size])
        to.leaders[:num_sequences, :num_partitions] = batch.leaders
        for tensor, value in ((to.slot_mapping, -1), (to.context_lens, 0), (to.positions, 0)):
            tensor[padding] = value


def record_graph(memory: object) -> Record:
    """A recorder of CUDA graphs, which share the memory that `torch.cuda.graph_pool_handle` names."""

    def record(function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()  # compiles kernels and takes workspaces, which a recording may not
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):  # type: ignore[arg-type]
            written = function()
        return graph.replay, written

    return record
