"""What a script asks for: how to draw, and how to search, under the names that scripts use elsewhere.

A value out of range raises ValueError where it is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from engine.sequence import MAX_BEAM_WIDTH, MAX_TOP_LOGPROBS, BeamParams
from engine.sequence import SamplingParams as EngineSampling

__all__ = ["BeamSearchParams", "SamplingParams"]

_UINT64_MASK = (1 << 64) - 1
_INT64 = 1 << 63
_MAX_CHOICES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How answers to one prompt are drawn. The defaults are those of completions over HTTP."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1 are the whole vocabulary
    min_p: float = 0.0
    seed: int | None = None  # None: drawn
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: what is left of the context
    min_tokens: int = 0
    logprobs: int | None = None  # candidates at each token of an answer
    prompt_logprobs: int | None = None  # the same for the prompt
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        _require_types(self)
        _require(1 <= self.n <= _MAX_CHOICES, f"n is 1 to {_MAX_CHOICES}")
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, f"{name} is -2 to 2")
        _require(0.01 <= self.repetition_penalty <= 10, "repetition_penalty is 0.01 to 10")
        _require(0 <= self.temperature < float("inf"), "temperature is 0 or more")
        _require(0 < self.top_p <= 1, "top_p is above 0 and at most 1")
        _require(self.top_k >= -1, "top_k is -1 or more")
        _require(0 <= self.min_p <= 1, "min_p is 0 to 1")
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens is 1 or more")
        _require(
            0 <= self.min_tokens <= (self.max_tokens or self.min_tokens), "min_tokens is 0 to max_tokens"
        )
        _require(self.seed is None or -_INT64 <= self.seed < _INT64, "seed has 64 bits")
        is_text = isinstance(self.stops, Sequence) and all(isinstance(stop, str) for stop in self.stops)
        _require(is_text and all(self.stops), "stop is a string, or several, none of them empty")
        biases = (self.logit_bias or {}).values()
        _require(all(-100 <= bias <= 100 for bias in biases), "logit_bias is -100 to 100")  # nor is it NaN
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(value is None or 0 <= value <= MAX_TOP_LOGPROBS, f"{name} is 0 to {MAX_TOP_LOGPROBS}")

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or ()

    def for_engine(
        self, *, num_left: int, vocab_size: int, end_token_ids: Sequence[int], fresh_seed: int
    ) -> EngineSampling:
        """The same in the engine's words. `num_left` is what the context has beside the prompt."""
        ends = () if self.ignore_eos else end_token_ids
        return EngineSampling(
            max_tokens=min(self.max_tokens or num_left, num_left),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=min(self.top_k, vocab_size) if self.top_k > 0 else None,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(self.logit_bias or {}),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            min_tokens=self.min_tokens,
            stop_token_ids=tuple(dict.fromkeys((*ends, *(self.stop_token_ids or ())))),
            seed=(fresh_seed if self.seed is None else self.seed) & _UINT64_MASK,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """How likely answers are searched for."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        _require_types(self)
        _require(1 <= self.beam_width <= MAX_BEAM_WIDTH, f"beam_width is 1 to {MAX_BEAM_WIDTH}")
        _require(self.max_tokens >= 1, "max_tokens is 1 or more")
        _require(-10 <= self.length_penalty <= 10, "length_penalty is -10 to 10")
        _require(self.early_stopping in (True, False, "never"), 'early_stopping is True, False or "never"')

    def for_engine(self, *, num_left: int, end_token_ids: Sequence[int]) -> EngineSampling:
        """The same in the engine's words. `num_left` is what the context has beside the prompt."""
        return EngineSampling(
            max_tokens=min(self.max_tokens, num_left),
            logprobs=0,  # their sum is told
            stop_token_ids=() if self.ignore_eos else tuple(end_token_ids),
            beam=BeamParams(
                width=self.beam_width,
                length_penalty=self.length_penalty,
                early_stopping=self.early_stopping,
            ),
        )


def _require_types(params: "SamplingParams | BeamSearchParams") -> None:
    """Numbers are numbers, and counts whole ones: else a mistake would show in the middle of a run."""
    for each in fields(params):
        value, kind = getattr(params, each.name), each.type
        if value is None and kind == int | None:
            continue
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if kind in (int, int | None):
            _require(is_whole, f"{each.name} is a whole number")
        elif kind is float:
            _require(is_whole or isinstance(value, float), f"{each.name} is a number")


def _require(is_so: bool, rule: str) -> None:
    if not is_so:
        raise ValueError(rule)
