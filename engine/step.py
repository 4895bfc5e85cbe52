"""One forward pass, as values: what the scheduler asks of the runner, and what the runner answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.sequence import FinishReason, Sequence
from prefix_cache.plan import BlockCopy

__all__ = ["Draw", "Outcome", "Span", "Step", "StepPlan", "StepResult", "enough_of_prompts"]


@dataclass(frozen=True, slots=True)
class Span:
    """Compute `sequence.tokens[start:end]`, whose predecessors are already in the sequence's blocks.

    A span that reaches the last token of its sequence also draws the next one. Up to `num_lookahead` proposed
    tokens may be computed after it and verified; there are slots for them.
    """

    sequence: Sequence
    start: int
    end: int
    num_lookahead: int = 0

    @property
    def draws(self) -> bool:
        """Whether the logits of the span's last token are sampled."""
        return self.end == self.sequence.num_tokens

    @property
    def is_decode(self) -> bool:
        """Whether the span is one drawn token, as opposed to a piece of a prompt."""
        return self.start >= self.sequence.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes for it at most."""
        return self.end - self.start + self.num_lookahead


@dataclass(frozen=True, slots=True)
class Step:
    """Copies first, then all spans in one ragged batch. The runner reads the sequences and changes none."""

    spans: tuple[Span, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step, at most."""
        return sum(span.num_tokens for span in self.spans)


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn token, or a token of a prompt as it was weighed.

    Log-probabilities are the model's own, before temperature, penalties and filters; those of a beam search
    come after penalties.
    """

    token_id: int
    logprob: float | None = None  # None when the sequence asked for none
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), best first


@dataclass(frozen=True, slots=True)
class SpanResult:
    """What one span brought.

    `draws` is empty unless the span draws; then it has one token after those of the proposed ones that held,
    which come first. For a beam search it has one whose `top` are the candidates.
    """

    draws: tuple[Draw, ...] = ()
    num_proposed: int = 0
    prompt_logprobs: tuple[Draw, ...] = ()  # of the prompt's tokens at start + 1 to end, when asked for
    failure: str | None = None  # why the sequence's request cannot go on; then nothing was drawn


@dataclass(frozen=True, slots=True)
class StepResult:
    """One result for each span of the step, in their order."""

    spans: tuple[SpanResult, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """News of one choice."""

    sequence: Sequence  # whose prompt it is
    choice: int
    draws: tuple[Draw, ...]  # the answer's next tokens
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the token that ended it, if one did; no part of the answer
    prompt_logprobs: tuple[Draw, ...] = ()  # of the prompt's next tokens
    is_first: bool = False  # nothing was told of this choice before


# Prompts that wait for each other get on in steps of half of what waits, and so many tokens at least: first
# answers come one after the other and not all at the end, and a crowd needs few steps. A long one counts as a
# short one would. A step has more beside each answer that grows, whose own part it costs anyway.
_TOKENS_OF_PROMPTS, _TOKENS_PER_ANSWER = 128, 8


def enough_of_prompts(sizes: Iterable[int]) -> int:
    """How many tokens of prompts fill a step, when prompts of these sizes wait for each other."""
    return max(_TOKENS_OF_PROMPTS, sum(min(size, _TOKENS_OF_PROMPTS) for size in sizes) // 2)


@dataclass(slots=True)
class StepPlan:
    """A step under construction: its spans, and the tokens it may still take."""

    budget: int
    enough_of_prompts: int  # tokens; with so many another prompt had better wait for the next step
    spans: dict[Sequence, Span] = field(default_factory=dict)

    @property
    def has_prompts(self) -> bool:
        """Whether it has enough of them. One alone may take the whole budget."""
        sizes = [span.end - span.start for span in self.spans.values()]
        num_answers = sizes.count(1)
        return sum(sizes) - num_answers >= self.enough_of_prompts + _TOKENS_PER_ANSWER * num_answers

    def add(self, sequence: Sequence, num_tokens: int, num_lookahead: int = 0) -> None:
        """Compute the next tokens of a sequence in this step."""
        start = sequence.num_computed
        self.spans[sequence] = Span(sequence, start, start + num_tokens, num_lookahead)
        self.budget -= num_tokens + num_lookahead

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out again, if it is in."""
        span = self.spans.pop(sequence, None)
        if span is not None:
            self.budget += span.num_tokens
