"""One forward pass, as values: what the scheduler asks of the runner, and what the runner answers."""

from dataclasses import dataclass, field

from engine.sequence import FinishReason, Sequence
from prefix_cache.plan import BlockCopy

__all__ = ["Draw", "Outcome", "Span", "Step", "StepPlan", "StepResult"]


@dataclass(frozen=True, slots=True)
class Span:
    """Compute `sequence.tokens[start:end]`, whose predecessors are already in the sequence's blocks.

    A span that reaches the last token of its sequence also draws the next one.
    """

    sequence: Sequence
    start: int
    end: int

    @property
    def draws(self) -> bool:
        """Whether the logits of the span's last token are sampled."""
        return self.end == self.sequence.num_tokens

    @property
    def is_decode(self) -> bool:
        """Whether the span is one drawn token, as opposed to a piece of a prompt."""
        return self.start >= self.sequence.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """Copies first, then all spans in one ragged batch. The runner reads the sequences and changes none."""

    spans: tuple[Span, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(span.end - span.start for span in self.spans)


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn token. Log-probabilities are the model's own, before temperature, penalties and filters."""

    token_id: int
    logprob: float | None = None  # None when the sequence asked for none
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), best first


@dataclass(frozen=True, slots=True)
class StepResult:
    """One draw for each span of the step with `draws`, in the order of the spans."""

    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought one sequence. The token that ended it, if one did, is the draw's."""

    sequence: Sequence
    draw: Draw
    finish_reason: FinishReason | None


@dataclass(slots=True)
class StepPlan:
    """A step under construction: its spans, and the tokens it may still take."""

    budget: int
    spans: dict[Sequence, Span] = field(default_factory=dict)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the next tokens of a sequence in this step."""
        self.spans[sequence] = Span(sequence, sequence.num_computed, sequence.num_computed + num_tokens)
        self.budget -= num_tokens

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out again, if it is in."""
        span = self.spans.pop(sequence, None)
        if span is not None:
            self.budget += span.end - span.start
