"""What a step's result means for each of its sequences: tokens, findable blocks, and news.

Owns the one place where a sequence grows. Blocks are committed up to what is verified, so proposals that did
not hold are written over and never found.
"""

from collections.abc import Callable

from engine.counters import Counters
from engine.lookahead import Lookahead
from engine.sequence import FinishReason, Sequence, Status
from engine.shares import Shares
from engine.step import Draw, Outcome, Span, SpanResult
from prefix_cache.tiers import TieredCache

__all__ = ["Landing"]


class Landing:
    """Takes results in, span by span. Ends nothing: whoever asks does."""

    def __init__(
        self,
        cache: TieredCache,
        counters: Counters,
        shares: Shares,
        lookahead: Lookahead,
        *,
        note_candidates: Callable[[Sequence, tuple[tuple[int, float], ...]], None],
    ) -> None:
        """`note_candidates` is told what could follow a hypothesis of a beam search."""
        self._cache = cache
        self._counters = counters
        self._shares = shares
        self._lookahead = lookahead
        self._note_candidates = note_candidates

    def take(self, span: Span, brought: SpanResult) -> Outcome | None:
        """Append the tokens that a span brought, and commit what it computed. None if there is no news."""
        sequence = span.sequence
        num_accepted = max(len(brought.draws) - 1, 0)
        self._count(span, brought.num_proposed, num_accepted)
        draws: tuple[Draw, ...] = ()
        stop: int | None = None
        reason: FinishReason | None = None
        is_drawing = bool(brought.draws) and sequence.status is Status.RUNNING
        if is_drawing and sequence.sampling.beam is None:
            draws, stop, reason = self._append(sequence, brought.draws)
        self._commit(sequence, min(span.end + num_accepted, sequence.num_tokens))
        if is_drawing and sequence.sampling.beam is not None:
            self._note_candidates(sequence, brought.draws[0].top)
        weighed = self._new_logprobs(span, brought.prompt_logprobs)
        if not (draws or weighed or reason):
            return None
        is_first, sequence.is_told = not sequence.is_told, True
        return Outcome(sequence, sequence.choice, draws, reason, stop, weighed, is_first)

    def _append(
        self, sequence: Sequence, drawn: tuple[Draw, ...]
    ) -> tuple[tuple[Draw, ...], int | None, FinishReason | None]:
        """Add drawn tokens up to the one that ends the sequence; returns the answer's, and how it ended."""
        sampling = sequence.sampling
        if sampling.max_tokens == 0:
            return (), None, "length"
        for place, draw in enumerate(drawn):
            self._counters.num_generated_tokens += 1
            if draw.token_id in sampling.stop_token_ids and sequence.num_drawn >= sampling.min_tokens:
                return drawn[:place], draw.token_id, "stop"
            sequence.tokens.append(draw.token_id)
            if sequence.num_drawn >= sampling.max_tokens:
                return drawn[: place + 1], None, "length"
        return drawn, None, None

    def _commit(self, sequence: Sequence, num_computed: int) -> None:
        lease = sequence.held_lease
        sequence.num_computed = num_computed
        self._cache.commit(lease, sequence.tokens[lease.num_committed : num_computed].tobytes())

    def _count(self, span: Span, num_proposed: int, num_accepted: int) -> None:
        sequence, counters = span.sequence, self._counters
        num_prompt_tokens = min(span.end, sequence.num_prompt_tokens) - span.start
        counters.num_computed_prompt_tokens += max(0, num_prompt_tokens)
        counters.num_proposed_tokens += num_proposed
        counters.num_accepted_tokens += num_accepted
        self._shares.charge(sequence.account, span.end - span.start + num_proposed)
        if span.num_lookahead and sequence.status is Status.RUNNING:
            self._lookahead.note(sequence, num_proposed, num_accepted)

    def _new_logprobs(self, span: Span, weighed: tuple[Draw, ...]) -> tuple[Draw, ...]:
        """Those of the prompt's tokens that were not told before: a preempted prompt is weighed again."""
        sequence = span.sequence
        first = span.start + 1
        news = weighed[max(max(sequence.num_weighed, 1) - first, 0) :]
        if news:
            sequence.num_weighed = first + len(weighed)
        return news
