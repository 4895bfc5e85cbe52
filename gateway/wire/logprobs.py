"""Log-probabilities on the wire: of chat, of completions, and of prompts.

The protocol's word for an impossible token is -9999.0, for JSON has no infinities.
"""

from array import array
from collections.abc import Sequence

import msgspec

from engine.messages import TokenLogprob
from gateway.choice import ToldToken
from gateway.conversation.spelling import Spelling

__all__ = [
    "ChoiceLogprobs",
    "CompletionLogprobs",
    "LogprobEntry",
    "PromptLogprob",
    "PromptLogprobs",
    "TopLogprob",
    "chat_logprobs",
    "completion_logprobs",
    "prompt_logprobs",
]

_LOWEST = -9999.0


class TopLogprob(msgspec.Struct, frozen=True):
    """One candidate at a token's place."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobEntry(msgspec.Struct, frozen=True):
    """A generated token, and the best candidates at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """In chat: one entry for each token whose text is told here."""

    content: list[LogprobEntry]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """In completions: arrays with one place for each token whose text is told here."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate at the place of a prompt's token; rank 1 is the best, and null is one that was not asked
    for.
    """

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token ids; of the first token there is nothing


def chat_logprobs(spelling: Spelling, tokens: Sequence[ToldToken], num_top: int) -> ChoiceLogprobs:
    """In chat's form, each with its `num_top` best candidates."""
    return ChoiceLogprobs([_entry(spelling, *_value(token), num_top) for token in tokens])


def completion_logprobs(spelling: Spelling, tokens: Sequence[ToldToken], num_top: int) -> CompletionLogprobs:
    """In completions' form, each with its `num_top` best candidates and itself."""
    values = [token.logprob for token in tokens]
    return CompletionLogprobs(
        tokens=[spelling.text_of(token.token_id) for token in tokens],
        token_logprobs=[None if value is None else _finite(value.logprob) for value in values],
        top_logprobs=[_by_text(spelling, token, num_top) for token in tokens],
        text_offset=[token.offset for token in tokens],
    )


def prompt_logprobs(
    spelling: Spelling, prompt: "array[int]", values: Sequence[TokenLogprob], num_top: int
) -> PromptLogprobs:
    """Of every token of a prompt; `values` begin with its second. The prompt's own token comes first."""
    told: PromptLogprobs = [None]
    for token_id, value in zip(prompt[1:], values, strict=True):
        top = value.top[:num_top]
        ranks = {candidate: rank for rank, (candidate, _) in enumerate(top, start=1)}
        told.append(
            {
                str(candidate): PromptLogprob(
                    logprob=_finite(logprob),
                    rank=ranks.get(candidate),
                    decoded_token=spelling.text_of(candidate),
                )
                for candidate, logprob in {token_id: value.logprob, **dict(top)}.items()
            }
        )
    return told


def _entry(spelling: Spelling, token_id: int, value: TokenLogprob, num_top: int) -> LogprobEntry:
    return LogprobEntry(
        token=spelling.text_of(token_id),
        logprob=_finite(value.logprob),
        bytes=list(spelling.bytes_of(token_id)),
        top_logprobs=[
            TopLogprob(
                token=spelling.text_of(candidate),
                logprob=_finite(logprob),
                bytes=list(spelling.bytes_of(candidate)),
            )
            for candidate, logprob in value.top[:num_top]
        ],
    )


def _value(token: ToldToken) -> tuple[int, TokenLogprob]:
    assert token.logprob is not None, "a generated token follows something"
    return token.token_id, token.logprob


def _by_text(spelling: Spelling, token: ToldToken, num_top: int) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    told: dict[str, float] = {}
    for candidate, logprob in (*token.logprob.top[:num_top], (token.token_id, token.logprob.logprob)):
        # two tokens may have one text: the better one is told
        text = spelling.text_of(candidate)
        told[text] = max(_finite(logprob), told.get(text, _LOWEST))
    return told


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
