"""The forward pass of a step on one device: copies, decoder, sampler.

Owns the decoder and the pool, and wires them to the sampler. Decides nothing: a step says what is computed,
and the sampler what is drawn. `loading.py` makes one. A step waits for its device once, where the sampler
fetches what it brought; a draft model's proposals are fetched one by one before.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import NamedTuple, Protocol

import torch

from engine.batch import blank_batch, build_batch
from engine.grammars import Grammars
from engine.graphs import Forward, GraphedDecoder
from engine.info import EngineInfo
from engine.kv_pool import KVPool
from engine.models.decoder import Decoder
from engine.sampling.rows import Row
from engine.sampling.sampler import Sampler, Weighed
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


class _Piece(NamedTuple):
    """Some of a span's tokens that are weighed against the prompt's tokens after them."""

    span: Span
    first_row: int  # of the hidden states
    token_ids: list[int]


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
        sampler: Sampler,
        fingerprint: bytes = b"",
        proposer: Proposer | None = None,
        graphs: GraphedDecoder | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.info = info
        self.pool = pool
        self.sampler = sampler
        self.fingerprint = fingerprint
        self.grammars = grammars
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
        rows = list(_rows(step.spans, proposed))
        finding = None if self.grammars is None else self.grammars.begin(rows)
        batch = build_batch(step.spans, self.pool.block_size, self._device, proposed)
        hidden = self._forward.forward(batch, self.pool)
        logits = self._logits(hidden, batch.drawing_rows)
        pieces = list(_pieces(step.spans, proposed))
        allowed = None if finding is None else finding.result()
        draws, told = self.sampler.sample(
            logits, rows, (self._weigh(piece, hidden) for piece in pieces), allowed=allowed
        )
        failures = {} if allowed is None else allowed.failures
        return StepResult(tuple(_results(step.spans, proposed, draws, _by_span(pieces, told), failures)))

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

    def _logits(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[len(rows), vocab_size] float32, whether or not there are any rows."""
        if not len(rows):
            return hidden.new_empty(0, self.info.vocab_size, dtype=torch.float32)
        return self._decoder.logits(hidden[rows])

    def _weigh(self, piece: _Piece, hidden: torch.Tensor) -> Weighed:
        """hidden: [num_tokens, hidden_size], the step's."""
        rows = hidden[piece.first_row : piece.first_row + len(piece.token_ids)]
        num_best = piece.span.sequence.sampling.prompt_logprobs or 0
        return Weighed(self._decoder.logits(rows), piece.token_ids, num_best)


def _rows(spans: Sequence[Span], proposed: Sequence[list[int]]) -> Iterator[Row]:
    """What `Batch.drawing_rows` names."""
    for span, ahead in zip(spans, proposed, strict=True):
        if span.draws:
            yield from (Row(span.sequence, tuple(ahead[:count])) for count in range(len(ahead) + 1))


def _pieces(spans: Sequence[Span], proposed: Sequence[list[int]]) -> Iterator[_Piece]:
    """Those whose log-probabilities are asked for."""
    lengths = [span.end - span.start + len(ahead) for span, ahead in zip(spans, proposed, strict=True)]
    for span, first_row in zip(spans, accumulate(lengths, initial=0), strict=False):
        tokens = span.sequence.tokens
        end = min(span.end, span.sequence.num_prompt_tokens - 1)
        if span.sequence.weighs_prompt:
            for start in range(span.start, end, _WEIGHED_ROWS):
                following = tokens[start + 1 : min(start + _WEIGHED_ROWS, end) + 1]
                yield _Piece(span, first_row + start - span.start, following.tolist())


def _by_span(pieces: Sequence[_Piece], told: Sequence[list[Draw]]) -> dict[Span, list[Draw]]:
    weighed: dict[Span, list[Draw]] = {}
    for piece, draws in zip(pieces, told, strict=True):
        weighed.setdefault(piece.span, []).extend(draws)
    return weighed


def _results(
    spans: Sequence[Span],
    proposed: Sequence[list[int]],
    draws: Sequence[Draw],
    weighed: Mapping[Span, list[Draw]],
    failures: Mapping[TokenSequence, str],
) -> Iterator[SpanResult]:
    """draws: of all rows, in their order."""
    left = iter(draws)
    for span, ahead in zip(spans, proposed, strict=True):
        verified = _verified(list(islice(left, len(ahead) + 1)), ahead) if span.draws else ()
        failure = failures.get(span.sequence)
        yield SpanResult(
            () if failure else verified, len(ahead), tuple(weighed.get(span, ())), failure=failure
        )


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
