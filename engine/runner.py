"""The forward pass of a step on one device: copies, decoder, sampler.

Owns the decoder and the pool, and wires them to the kernels. Decides nothing: a step says what is computed,
and the sampler what is drawn. `loading.py` makes one.
"""

import time
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import torch

from engine.batch import Batch, blank_batch, build_batch
from engine.graphs import Forward, GraphedDecoder
from engine.info import EngineInfo
from engine.kv_pool import KVPool
from engine.models.decoder import Decoder
from engine.sampling.rows import Row
from engine.sampling.sampler import report, sample
from engine.sequence import Sequence as TokenSequence
from engine.speculation.draft import DraftProposer
from engine.step import Draw, Span, SpanResult, Step, StepResult

__all__ = ["ModelRunner"]

_WEIGHED_ROWS = 64  # of logits at a time: each takes as much memory as the vocabulary has entries


class Proposer(Protocol):
    """Guesses what sequences will say next."""

    def follow(self, step: Step) -> None:
        """A step is about to be carried out: proposals for it are asked for after this."""
        ...

    def propose(self, spans: Sequence[Span]) -> list[list[int]]:
        """For each span, at most `num_lookahead` tokens."""
        ...


class ModelRunner:
    """Runs steps, one after the other, in the thread that built it.

    `fingerprint` is empty unless the engine has a disk tier.
    """

    def __init__(
        self,
        info: EngineInfo,
        decoder: Decoder,
        pool: KVPool,
        *,
        fingerprint: bytes = b"",
        proposer: Proposer | None = None,
        graphs: GraphedDecoder | None = None,
    ) -> None:
        self.info = info
        self.pool = pool
        self.fingerprint = fingerprint
        self._decoder = decoder
        self._forward: Forward = graphs or decoder
        self.proposal_seconds = 0.0  # what one proposed token costs beside its verification
        self._proposer = proposer
        self._device = torch.device(info.device)
        if isinstance(proposer, DraftProposer):
            self.proposal_seconds = proposer.measure()

    @property
    def decoder(self) -> Decoder:
        """The model, for those who measure it."""
        return self._decoder

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Changes the blocks of the step's copies and spans, and nothing else."""
        self.pool.copy(step.copies)
        if not step.spans:
            return StepResult(())
        proposed = self._propose(step)
        batch = build_batch(step.spans, self.pool.block_size, self._device, proposed)
        hidden = self._forward.forward(batch, self.pool)
        draws = iter(self._draw(step.spans, proposed, hidden[batch.drawing_rows]))
        weighed = self._weigh(step.spans, batch, hidden)
        return StepResult(
            tuple(
                SpanResult(
                    _verified(list(islice(draws, len(ahead) + 1)), ahead) if span.draws else (),
                    len(ahead),
                    weighed.get(span, ()),
                )
                for span, ahead in zip(step.spans, proposed, strict=True)
            )
        )

    @torch.inference_mode()
    def measure_steps(self, sizes: Sequence[int]) -> dict[int, float]:
        """Seconds that steps of so many tokens of one prompt take. Stores nothing."""
        seconds = {}
        for num_tokens in sizes:
            batch = blank_batch(num_tokens, self.pool.block_size, self._device)
            times = []
            for _ in range(2):  # the first one takes the memory that both need
                started = time.perf_counter()
                hidden = self._decoder.forward(batch, self.pool)
                self._decoder.logits(hidden[batch.drawing_rows]).sum().item()
                times.append(time.perf_counter() - started)
            seconds[num_tokens] = min(times)
        return seconds

    def _propose(self, step: Step) -> list[list[int]]:
        spans = step.spans
        proposed: list[list[int]] = [[] for _ in spans]
        if self._proposer is None:
            return proposed
        self._proposer.follow(step)
        asked = [place for place, span in enumerate(spans) if span.num_lookahead]
        if asked:
            for place, ahead in zip(
                asked, self._proposer.propose([spans[each] for each in asked]), strict=True
            ):
                proposed[place] = ahead
        return proposed

    def _draw(self, spans: Sequence[Span], proposed: Sequence[list[int]], hidden: torch.Tensor) -> list[Draw]:
        """hidden: [num_rows, hidden_size], of the rows that `Batch.drawing_rows` names."""
        rows = [
            Row(span.sequence, tuple(ahead[:count]))
            for span, ahead in zip(spans, proposed, strict=True)
            if span.draws
            for count in range(len(ahead) + 1)
        ]
        return sample(self._decoder.logits(hidden), rows) if rows else []

    def _weigh(
        self, spans: Sequence[Span], batch: Batch, hidden: torch.Tensor
    ) -> dict[Span, tuple[Draw, ...]]:
        """Log-probabilities of the prompt tokens that follow the spans' tokens, where they are asked for."""
        weighed = {}
        for span, first in zip(spans, batch.cu_seqlens_q.tolist(), strict=False):
            sequence = span.sequence
            end = min(span.end, sequence.num_prompt_tokens - 1)
            if sequence.weighs_prompt and span.start < end:
                rows = hidden[first : first + end - span.start]
                weighed[span] = self._weigh_span(sequence, span.start + 1, rows)
        return weighed

    def _weigh_span(self, sequence: TokenSequence, position: int, hidden: torch.Tensor) -> tuple[Draw, ...]:
        """hidden: [num_tokens, hidden_size]; row i is weighed against the token at position + i."""
        draws: list[Draw] = []
        count = sequence.sampling.prompt_logprobs or 0
        for rows in torch.split(hidden, _WEIGHED_ROWS):
            start = position + len(draws)
            token_ids = sequence.tokens[start : start + len(rows)].tolist()
            logprobs = torch.log_softmax(self._decoder.logits(rows), dim=-1)
            draws += report(logprobs, token_ids, [count] * len(rows))
        return tuple(draws)


def _verified(draws: list[Draw], proposed: list[int]) -> tuple[Draw, ...]:
    """The draws that count: up to the first one that a proposal was wrong about.

    Each is the model's own, made as if all proposals before it had been drawn. So the text is the same as
    without proposals, seed for seed; and a proposal holds with just the probability that the model gives it,
    which is what rejection sampling does with a proposal that is certain (Leviathan et al., 2023).
    """
    num_held = 0
    while num_held < len(proposed) and draws[num_held].token_id == proposed[num_held]:
        num_held += 1
    return tuple(draws[: num_held + 1])
