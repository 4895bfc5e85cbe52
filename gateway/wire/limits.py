"""The ranges of a chat request's fields, and what its fields demand of each other.

Every refusal says what was wrong, the limit, and what to do. What depends on the model (vocabulary,
context) is checked where the model is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.sequence import MAX_TOP_LOGPROBS
from gateway.errors import InvalidRequest
from gateway.wire.chat_request import ChatRequest

__all__ = ["MAX_CHOICES", "MAX_MESSAGES", "MAX_STOPS", "MAX_STOP_CHARACTERS", "check_limits"]

MAX_CHOICES = 16
MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 16_384  # of all together
MAX_STOP_TOKEN_IDS = 256
MAX_BIASED_TOKENS = 1024
MAX_SALT_CHARACTERS = 1024
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float
    is_open: bool = False  # the low end itself is out

    def __contains__(self, value: float) -> bool:
        return value <= self.high and (value > self.low if self.is_open else value >= self.low)

    def __str__(self) -> str:
        low = f"{'more than' if self.is_open else 'at least'} {self.low:,}"
        return low if self.high >= _INT64 - 1 and self.low >= -1 else f"{low} and at most {self.high:,}"


_RANGES = {
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, is_open=True),
    "min_p": _Range(0, 1),
    "top_k": _Range(-1, _INT64 - 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0.01, 10),
    "max_tokens": _Range(1, _INT64 - 1),
    "max_completion_tokens": _Range(1, _INT64 - 1),
    "min_tokens": _Range(0, _INT64 - 1),
    "n": _Range(1, MAX_CHOICES),
    "seed": _Range(-_INT64, _INT64 - 1),
    "top_logprobs": _Range(0, MAX_TOP_LOGPROBS),
}


def check_limits(chat: ChatRequest) -> None:
    """Raise InvalidRequest for the first field out of range."""
    for name, limits in _RANGES.items():
        value = getattr(chat, name)
        if value is not None and value not in limits:
            raise InvalidRequest(f"{name} is {_short(value)}; it must be {limits}.", param=name)
    _check_messages(chat)
    _check_stops(chat.stop or ())
    _check_logit_bias(chat.logit_bias or {})
    _check_pairs(chat)
    _check_session(chat)
    _at_most(len(chat.stop_token_ids or ()), MAX_STOP_TOKEN_IDS, "stop_token_ids", "ids")
    if chat.cache_salt is not None and not 0 < len(chat.cache_salt) <= MAX_SALT_CHARACTERS:
        raise InvalidRequest(
            f"cache_salt must have 1 to {MAX_SALT_CHARACTERS} characters; leave it out for none.",
            param="cache_salt",
        )


def _check_messages(chat: ChatRequest) -> None:
    if not chat.messages:
        raise InvalidRequest("messages is empty; send at least one message.", param="messages")
    _at_most(len(chat.messages), MAX_MESSAGES, "messages", "messages")


def _check_stops(stops: Sequence[str]) -> None:
    _at_most(len(stops), MAX_STOPS, "stop", "strings")
    _at_most(sum(map(len, stops)), MAX_STOP_CHARACTERS, "stop", "characters")
    for stop in stops:
        if not stop:
            raise InvalidRequest(
                "stop holds an empty string; leave it out, or send null for none.", param="stop"
            )


def _check_logit_bias(biases: dict[str, float]) -> None:
    _at_most(len(biases), MAX_BIASED_TOKENS, "logit_bias", "tokens")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 12):
            raise InvalidRequest(
                'logit_bias has a key that is no token id, such as "42".', param="logit_bias"
            )
        if not -100 <= bias <= 100:
            raise InvalidRequest(
                f"logit_bias of token {token} must be between -100 and 100.", param="logit_bias"
            )


def _check_pairs(chat: ChatRequest) -> None:
    """Fields that make sense only beside others."""
    if chat.top_logprobs is not None and not chat.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    if chat.stream_options is not None and not chat.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    if chat.token_limit is not None and (chat.min_tokens or 0) > chat.token_limit:
        raise InvalidRequest(
            f"min_tokens is {chat.min_tokens}, more than the {chat.token_limit} that the answer may have.",
            param="min_tokens",
        )
    if chat.continue_final_message and chat.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message continues the last message and add_generation_prompt begins a new one: "
            "send only one of them as true.",
            param="continue_final_message",
        )
    if chat.continue_final_message and chat.messages[-1].role != "assistant":
        raise InvalidRequest(
            "continue_final_message needs an assistant's message at the end.", param="continue_final_message"
        )


def _check_session(chat: ChatRequest) -> None:
    """A session is one conversation, continued by one answer that is kept."""
    if chat.session_id is None:
        return
    if chat.num_choices != 1:
        raise InvalidRequest("n must be 1 with session_id; fork the session for other answers.", param="n")
    if chat.cache_hints.is_side:
        raise InvalidRequest(
            "cache: read-only keeps nothing, and a session keeps its turns; send one of the two.",
            param="cache",
        )
    if chat.cache_salt is not None:
        raise InvalidRequest(
            "cache_salt is chosen when a session is created; leave it out.", param="cache_salt"
        )
    if chat.continue_final_message or chat.add_generation_prompt is False:
        name = "continue_final_message" if chat.continue_final_message else "add_generation_prompt"
        raise InvalidRequest(
            f"{name} is not served with session_id, where every answer is a message of its own.", param=name
        )


def _at_most(count: int, limit: int, name: str, what: str) -> None:
    if count > limit:
        raise InvalidRequest(f"{name} has {count:,} {what}; at most {limit:,} are allowed.", param=name)


def _short(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}…"
