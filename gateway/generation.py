"""The choices of one prompt as they grow, from the engine's events to the pieces that are told.

It owns the order in which things are told: the prompt first where it is echoed, and its log-probabilities
before any answer. It speaks to nobody, so what serves HTTP and what serves a script use it alike.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.cache_messages import CacheReport
from engine.messages import Submit, TokenEvent, TokenLogprob
from gateway.choice import Choice, Piece, ToldToken

__all__ = ["Echo", "Generation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """The prompt's text, told before every answer to it."""

    text: str
    offsets: Sequence[int]  # of each token of the prompt, in characters of the text
    with_logprobs: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Generation:
    """One prompt and its choices. Fed with events until every choice is finished."""

    submit: Submit
    prompt_ids: "array[int]"
    choices: list[Choice]
    echo: Echo | None = None
    num_cached_tokens: int = 0
    cache: CacheReport | None = None  # of choice 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # from the second token on
    _waiting: list[TokenEvent] = field(default_factory=list)  # until the prompt can be told
    _is_echoed: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether every choice is."""
        return all(choice.is_finished for choice in self.choices)

    @property
    def num_drawn(self) -> int:
        """Tokens of all choices so far."""
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def num_reasoning_tokens(self) -> int:
        """Those of them that were reasoning."""
        return sum(choice.num_reasoning_tokens for choice in self.choices)

    def push(self, event: TokenEvent) -> list[Piece]:
        """Take the next event. Mutates; what is told of choices that have just finished says so."""
        self.num_cached_tokens = event.num_cached_tokens
        if event.cache is not None and event.choice == 0:
            self.cache = event.cache
        self.prompt_logprobs += event.prompt_logprobs or ()
        self._waiting.append(event)
        if not self._can_tell:
            return []
        pieces = self._echoes()
        events, self._waiting = self._waiting, []
        for each in events:
            choice = self.choices[each.choice]
            if not choice.is_finished:  # else it was drawn before the abort arrived
                pieces.append(choice.push(each))
        return pieces

    @property
    def _can_tell(self) -> bool:
        if self.echo is None or not self.echo.with_logprobs:
            return True
        return len(self.prompt_logprobs) >= len(self.prompt_ids) - 1

    def _echoes(self) -> list[Piece]:
        if self.echo is None or self._is_echoed:
            return []
        self._is_echoed = True
        told = self._prompt_tokens(self.echo) if self.echo.with_logprobs else []
        return [Piece(choice.index, self.echo.text, told) for choice in self.choices]

    def _prompt_tokens(self, echo: Echo) -> list[ToldToken]:
        values = [None, *self.prompt_logprobs]
        return [ToldToken(*each) for each in zip(self.prompt_ids, echo.offsets, values, strict=True)]
