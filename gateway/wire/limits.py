"""The ranges of the fields that all requests for text have, and what they demand of each other.

Every refusal says what was wrong, the limit, and what to do. What depends on the model (vocabulary,
context) is checked where the model is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.sequence import MAX_BEAM_WIDTH, MAX_TOP_LOGPROBS
from gateway.errors import InvalidRequest
from gateway.wire.prompt_cache_limits import check_prompt_cache
from gateway.wire.text_request import TextRequest

__all__ = [
    "MAX_CHOICES",
    "MAX_MESSAGES",
    "MAX_STOPS",
    "MAX_STOP_CHARACTERS",
    "RANGES",
    "Range",
    "at_most",
    "check_common",
    "check_ranges",
]

MAX_CHOICES = 16
MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 16_384  # of all together
MAX_STOP_TOKEN_IDS = 256
MAX_BIASED_TOKENS = 1024
MAX_SALT_CHARACTERS = 1024
MAX_PRIORITY = (1 << 31) - 1
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers that are taken."""

    low: float
    high: float
    is_open: bool = False  # the low end itself is out

    def __contains__(self, value: float) -> bool:
        return value <= self.high and (value > self.low if self.is_open else value >= self.low)

    def __str__(self) -> str:
        low = f"{'more than' if self.is_open else 'at least'} {self.low:,}"
        return low if self.high >= _INT64 - 1 and self.low >= -1 else f"{low} and at most {self.high:,}"


RANGES: Mapping[str, Range] = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, is_open=True),
    "min_p": Range(0, 1),
    "top_k": Range(-1, _INT64 - 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0.01, 10),
    "min_tokens": Range(0, _INT64 - 1),
    "n": Range(1, MAX_CHOICES),
    "seed": Range(-_INT64, _INT64 - 1),
    "prompt_logprobs": Range(0, MAX_TOP_LOGPROBS),
    "beam_width": Range(1, MAX_BEAM_WIDTH),
    "length_penalty": Range(-10, 10),
    "priority": Range(-MAX_PRIORITY - 1, MAX_PRIORITY),
}


# Of a field: the values that say nothing beside a beam search, and why others are refused.
_BESIDE_BEAMS: Mapping[str, tuple[tuple[object, ...], str]] = {
    "temperature": ((0, 1), "nothing is drawn"),
    "top_p": ((1,), "nothing is drawn"),
    "top_k": ((0, -1), "nothing is drawn"),
    "min_p": ((0,), "nothing is drawn"),
    "stop": (([],), "hypotheses end at tokens; send stop_token_ids"),
}
_OF_BEAMS: Mapping[str, tuple[object, ...]] = {
    "beam_width": (),
    "length_penalty": (1,),
    "early_stopping": (False,),
}


def check_common(request: TextRequest) -> None:
    """Raise InvalidRequest for the first field out of range."""
    check_ranges(request, RANGES)
    _check_stops(request.stop or ())
    _check_logit_bias(request.logit_bias or {})
    _check_pairs(request)
    _check_beams(request)
    _check_structure(request)
    check_prompt_cache(request)
    at_most(len(request.stop_token_ids or ()), MAX_STOP_TOKEN_IDS, "stop_token_ids", "ids")
    if request.cache_salt is not None and not 0 < len(request.cache_salt) <= MAX_SALT_CHARACTERS:
        raise InvalidRequest(
            f"cache_salt must have 1 to {MAX_SALT_CHARACTERS} characters; leave it out for none.",
            param="cache_salt",
        )


def check_ranges(request: TextRequest, ranges: Mapping[str, Range]) -> None:
    """The same for numbers alone."""
    for name, limits in ranges.items():
        value = getattr(request, name)
        if value is not None and value not in limits:
            raise InvalidRequest(f"{name} is {_short(value)}; it must be {limits}.", param=name)


def at_most(count: int, limit: int, name: str, what: str) -> None:
    """The same for how many there are of something."""
    if count > limit:
        raise InvalidRequest(f"{name} has {count:,} {what}; at most {limit:,} are allowed.", param=name)


def _check_stops(stops: Sequence[str]) -> None:
    at_most(len(stops), MAX_STOPS, "stop", "strings")
    at_most(sum(map(len, stops)), MAX_STOP_CHARACTERS, "stop", "characters")
    for stop in stops:
        if not stop:
            raise InvalidRequest(
                "stop holds an empty string; leave it out, or send null for none.", param="stop"
            )


def _check_logit_bias(biases: dict[str, float]) -> None:
    at_most(len(biases), MAX_BIASED_TOKENS, "logit_bias", "tokens")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 12):
            raise InvalidRequest(
                'logit_bias has a key that is no token id, such as "42".', param="logit_bias"
            )
        if not -100 <= bias <= 100:
            raise InvalidRequest(
                f"logit_bias of token {token} must be between -100 and 100.", param="logit_bias"
            )


def _check_structure(request: TextRequest) -> None:
    """Raise InvalidRequest for what says two things at once, or goes with nothing of the kind."""
    said, holding = request.structure_fields, request.holding_fields
    if len(said) > 1:
        raise InvalidRequest(f"{said[0]} and {said[1]} exclude each other; send one of them.", param=said[1])
    if not holding:
        return
    for name, is_there in (
        ("use_beam_search", bool(request.use_beam_search)),
        ("min_tokens", bool(request.min_tokens)),
        ("ignore_eos", bool(request.ignore_eos)),
    ):
        if is_there:
            raise InvalidRequest(
                f"{name} is not served beside {holding[0]}; leave one of them out.", param=name
            )


def _check_pairs(request: TextRequest) -> None:
    """Fields that make sense only beside others."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequest(
            "prompt_logprobs is told with whole answers only; send it without stream.",
            param="prompt_logprobs",
        )
    limit = request.token_limit if request.token_limit is not None else request.default_limit
    if limit is not None and (request.min_tokens or 0) > limit:
        raise InvalidRequest(
            f"min_tokens is {_short(request.min_tokens or 0)}, more than the {_short(limit)} that the "
            "answer may have.",
            param="min_tokens",
        )


def _check_beams(request: TextRequest) -> None:
    """What a beam search cannot heed is refused, and what only one heeds needs one."""
    if not request.use_beam_search:
        for name, silent in _OF_BEAMS.items():
            value = getattr(request, name)
            if value is not None and value not in silent:
                raise InvalidRequest(f"{name} needs use_beam_search: true.", param=name)
        return
    for name, (silent, reason) in _BESIDE_BEAMS.items():
        value = getattr(request, name)
        if value is not None and value not in silent:
            raise InvalidRequest(
                f"{name} cannot be heeded with use_beam_search: {reason}. Leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    if request.beam_width is not None and request.num_choices > request.beam_width:
        raise InvalidRequest(
            f"n is {request.num_choices}, more than the {request.beam_width} hypotheses of beam_width.",
            param="n",
        )


def _short(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}…"
