"""A smaller model that guesses what the larger one will say, over the same blocks.

Its keys and values are further layers of the blocks that the cache hands out: block ids, tables and copies
are the same, so what one sequence's draft has computed of a shared prefix serves the next one too. Owns how
much of each block the draft has computed, since it may lag behind: it computes what it lacks a piece a step,
and only then proposes.

It draws with the very numbers that the larger model will draw with, so where both find the same tokens likely
they say the same.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch

from engine.batch import blank_batch, build_batch
from engine.kv_pool import KVPool
from engine.models.decoder import Decoder
from engine.sampling.rows import Row
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence as TokenSequence
from engine.step import Span, Step

__all__ = ["DraftProposer"]

_MAX_CATCH_UP = 256  # tokens of prompts that the draft computes in one step


class DraftProposer:
    """Runs on the thread of the runner whose pool it follows."""

    def __init__(self, decoder: Decoder, pool: KVPool, followed: KVPool, sampler: Sampler) -> None:
        """`pool` holds the draft's layers of the blocks of `followed`."""
        assert pool.num_blocks == followed.num_blocks, "blocks have the same ids in both"
        assert pool.block_size == followed.block_size, "and the same slots"
        self._decoder = decoder
        self._pool = pool
        self._followed = followed
        self._sampler = sampler
        self._num_valid = np.zeros(pool.num_blocks, np.int64)  # leading tokens of each block
        self._num_loads = followed.num_loads.copy()

    @torch.inference_mode()
    def measure(self) -> float:
        """Seconds that one token takes. Stores nothing."""
        batch = blank_batch(1, self._pool.block_size, self._pool.device)
        times = []
        for _ in range(3):  # the first one compiles, and takes memory that all need
            started = time.perf_counter()
            self._decoder.logits(self._decoder.forward(batch, self._pool)).sum().item()
            times.append(time.perf_counter() - started)
        return min(times)

    def follow(self, step: Step) -> None:
        """Take note of what a step is about to copy and to compute: what lay there is void."""
        loads = self._followed.num_loads.copy()
        self._num_valid[loads != self._num_loads] = 0  # brought from a colder tier, without the draft's part
        self._num_loads = loads
        self._pool.copy(step.copies)
        for copy in step.copies:
            self._num_valid[copy.target_block] = min(self._num_valid[copy.source_block], copy.num_tokens)
        size = self._pool.block_size
        for span in step.spans:
            blocks = span.sequence.block_table[
                span.start // size : -(-(span.end + span.num_lookahead) // size)
            ]
            self._num_valid[blocks[0]] = min(self._num_valid[blocks[0]], span.start % size)
            self._num_valid[blocks[1:]] = 0

    def propose(self, spans: Sequence[Span]) -> list[list[int]]:
        """For each span whose tokens the draft has caught up with, `num_lookahead` tokens; else none."""
        proposed: list[list[int]] = [[] for _ in spans]
        pieces = self._missing(spans)
        hidden = self._compute([piece for piece in pieces if piece is not None], ())
        active = [place for place, piece in enumerate(pieces) if piece is not None and piece.draws]
        while active:
            rows = [Row(spans[place].sequence, tuple(proposed[place])) for place in active]
            drawn = self._sampler.draw_tokens(self._decoder.logits(hidden), rows)
            for place, token_id in zip(active, drawn, strict=True):
                proposed[place].append(token_id)
            active = [place for place in active if len(proposed[place]) < spans[place].num_lookahead]
            if active:
                last = [proposed[place][-1:] for place in active]
                hidden = self._compute(
                    [_empty_span(spans[place].sequence, len(proposed[place]) - 1) for place in active], last
                )
        return proposed

    def _missing(self, spans: Sequence[Span]) -> list[Span | None]:
        """What is to be computed of each sequence before the draft can go on from its last token."""
        pieces: list[Span | None] = []
        budget = _MAX_CATCH_UP
        for span in spans:
            sequence = span.sequence
            # The last token is computed again if need be: without it there are no logits.
            start = min(self._num_computed(sequence), sequence.num_tokens - 1)
            end = min(sequence.num_tokens, start + budget)
            pieces.append(Span(sequence, start, end) if span.num_lookahead and start < end else None)
            budget -= end - start
        return pieces

    def _num_computed(self, sequence: TokenSequence) -> int:
        """Leading tokens of a sequence that the draft has computed."""
        size = self._pool.block_size
        valid = self._num_valid[sequence.block_table]
        num_full = int(np.argmin(np.append(valid == size, False)))
        return num_full * size + (int(valid[num_full]) if num_full < len(valid) else 0)

    def _compute(self, spans: Sequence[Span], ahead: Sequence[Sequence[int]]) -> torch.Tensor:
        """The hidden states after the last token of every span that has reached it: [num_rows, hidden_size].

        `ahead` has one token for each span, if the spans themselves are empty.
        """
        if not spans:
            return torch.empty(0)
        batch = build_batch(spans, self._pool.block_size, self._pool.device, ahead)
        hidden = self._decoder.forward(batch, self._pool)
        size = self._pool.block_size
        ends = [
            span.end + len(tokens) for span, tokens in zip(spans, ahead or [()] * len(spans), strict=True)
        ]
        for span, end in zip(spans, ends, strict=True):
            blocks = span.sequence.block_table[span.start // size : -(-end // size)]
            self._num_valid[blocks[:-1]] = size
            self._num_valid[blocks[-1]] = end - (-(-end // size) - 1) * size
        return hidden if ahead else hidden[batch.drawing_rows]


def _empty_span(sequence: TokenSequence, num_ahead: int) -> Span:
    """The place after a sequence's tokens and so many proposed ones."""
    place = sequence.num_tokens + num_ahead
    return Span(sequence, place, place)
