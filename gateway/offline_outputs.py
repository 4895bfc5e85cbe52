"""What a script gets: answers with their ids and log-probabilities, by the names that scripts know."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import TokenLogprob
from gateway.choice import Choice, EndReason, ToldToken
from gateway.conversation.spelling import Spelling

__all__ = [
    "BeamSearchOutput",
    "BeamSearchSequence",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "completion_output",
    "prompt_logprobs",
]


@dataclass(frozen=True, slots=True)
class Logprob:
    """A candidate at a token's place. Rank 1 is the best; None is one that was not among those asked for."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None  # None unless logprobs were asked for
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: EndReason
    stop_reason: int | str | None = None  # the stop string, or the id among stop_token_ids, that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None  # None where ids were given
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True
    num_cached_tokens: int = 0  # of the prompt, found in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchSequence:
    """One of the likeliest answers, with the prompt that it continues."""

    tokens: list[int]
    text: str
    cum_logprob: float  # of the answer
    finish_reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchOutput:
    """The likeliest answers to one prompt, best first."""

    sequences: list[BeamSearchSequence]


def completion_output(
    choice: Choice, told: Sequence[ToldToken] | None, spelling: Spelling, *, stop_token_ids: Sequence[int]
) -> CompletionOutput:
    """A finished choice; `told` are its tokens with log-probabilities, None if nobody asked."""
    assert choice.finish_reason is not None, "the choice has ended"
    by_id = choice.stop_token_id if choice.stop_token_id in stop_token_ids else None
    logprobs = None
    if told is not None:
        logprobs = [_candidates(token.token_id, token.logprob, spelling) for token in told]
    return CompletionOutput(
        index=choice.index,
        text=choice.text,
        token_ids=choice.token_ids,
        cumulative_logprob=None if told is None else choice.cumulative_logprob,
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_string if choice.hit_stop_string else by_id,
    )


def prompt_logprobs(
    prompt: Sequence[int], values: Sequence[TokenLogprob], spelling: Spelling
) -> list[dict[int, Logprob] | None]:
    """Of every token of a prompt; of the first there is nothing, so `values` begin with the second."""
    pairs = zip(prompt[1:], values, strict=True)
    return [None, *[_candidates(token_id, value, spelling) for token_id, value in pairs]]


def _candidates(token_id: int, value: TokenLogprob | None, spelling: Spelling) -> dict[int, Logprob]:
    assert value is not None, "a weighed token follows something"
    ranks = {candidate: rank for rank, (candidate, _) in enumerate(value.top, start=1)}
    return {
        candidate: Logprob(logprob, ranks.get(candidate), spelling.text_of(candidate))
        for candidate, logprob in {token_id: value.logprob, **dict(value.top)}.items()
    }
