"""A chat request's wishes in the engine's words, with every default resolved.

What depends on the model is checked here: ids against the vocabulary, lengths against the context. A
request without a seed gets one drawn from `fresh_seed`.
"""

from collections.abc import Callable, Sequence

from engine.messages import EngineInfo
from engine.sequence import SamplingParams
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.wire.chat_request import ChatRequest

__all__ = ["answer_limit", "to_sampling_params"]

_UINT64_MASK = (1 << 64) - 1


def answer_limit(chat: ChatRequest, info: EngineInfo, num_prompt_tokens: int) -> int:
    """How many tokens the answer may have. Raises ContextTooLong when prompt and answer do not fit."""
    limit = info.max_request_tokens
    wanted = chat.token_limit
    if wanted is None and num_prompt_tokens < limit:
        return limit - num_prompt_tokens
    if wanted is not None and num_prompt_tokens + wanted <= limit:
        return wanted
    name = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    answer = "an answer needs at least 1" if wanted is None else f"{name} asks for {wanted:,} more"
    raise ContextTooLong(
        f"The prompt has {num_prompt_tokens:,} tokens and {answer}; the limit is {limit:,} together. "
        f"Shorten the messages{'' if wanted is None else f' or lower {name}'}.",
        param="messages" if wanted is None or num_prompt_tokens >= limit else name,
    )


def to_sampling_params(
    chat: ChatRequest,
    *,
    max_tokens: int,
    vocab_size: int,
    end_token_ids: Sequence[int],
    fresh_seed: Callable[[], int],
) -> SamplingParams:
    """The engine's sampling parameters. Raises InvalidRequest for ids outside the vocabulary."""
    stop_ids = _known_ids(chat.stop_token_ids or (), vocab_size, "stop_token_ids")
    biased = _known_ids([int(token) for token in chat.logit_bias or ()], vocab_size, "logit_bias")
    ends = () if chat.ignore_eos else tuple(end_token_ids)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(chat.temperature, 1.0),
        top_p=_or(chat.top_p, 1.0),
        top_k=min(chat.top_k, vocab_size) if chat.top_k is not None and chat.top_k > 0 else None,
        min_p=_or(chat.min_p, 0.0),
        presence_penalty=_or(chat.presence_penalty, 0.0),
        frequency_penalty=_or(chat.frequency_penalty, 0.0),
        repetition_penalty=_or(chat.repetition_penalty, 1.0),
        logit_bias=dict(zip(biased, (chat.logit_bias or {}).values(), strict=True)),
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        min_tokens=chat.min_tokens or 0,
        stop_token_ids=tuple(dict.fromkeys((*ends, *stop_ids))),
        seed=(fresh_seed() if chat.seed is None else chat.seed) & _UINT64_MASK,
    )


def _known_ids(ids: Sequence[int], vocab_size: int, name: str) -> Sequence[int]:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"{name} names token {str(token_id)[:24]}; this model's tokens are 0 to {vocab_size - 1:,}.",
                param=name,
            )
    return ids


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
