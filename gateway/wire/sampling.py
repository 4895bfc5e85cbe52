"""What a request for text wishes, in the engine's words, with every default resolved.

What depends on the model is checked here: ids against the vocabulary, lengths against the context. A
request without a seed gets one drawn from `fresh_seed`.
"""

from collections.abc import Callable, Sequence

from engine.messages import EngineInfo
from engine.sequence import SamplingParams
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.wire.text_request import TextRequest

__all__ = ["MAX_PROMPT_LOGPROBS", "answer_limit", "check_told", "to_sampling_params"]

MAX_PROMPT_LOGPROBS = 1 << 19
_UINT64_MASK = (1 << 64) - 1


def answer_limit(
    request: TextRequest, info: EngineInfo, num_prompt_tokens: int, *, prompt_field: str = "messages"
) -> int:
    """How many tokens the answer may have. Raises ContextTooLong when prompt and answer do not fit.

    `prompt_field` is where the prompt came from.
    """
    limit = info.max_request_tokens
    wanted = 0 if request.prewarms else request.token_limit
    if wanted is None and num_prompt_tokens < limit:
        return min(limit - num_prompt_tokens, request.default_limit or limit)
    if wanted is not None and num_prompt_tokens + wanted <= limit:
        return wanted
    name = request.limit_field
    answer = "an answer needs at least 1" if wanted is None else f"{name} asks for {wanted:,} more"
    raise ContextTooLong(
        f"The prompt has {num_prompt_tokens:,} tokens and {answer}; the limit is {limit:,} together. "
        f"Shorten the {prompt_field}{f' or lower {name}' if wanted else ''}.",
        param=name if wanted and num_prompt_tokens < limit else prompt_field,
    )


def check_told(request: TextRequest, num_prompt_tokens: int) -> None:
    """Raise InvalidRequest when more would be told of prompts than memory should hold.

    `num_prompt_tokens` is of all prompts.
    """
    if request.num_prompt_candidates is None:
        return
    num_values = num_prompt_tokens * (1 + request.num_prompt_candidates)
    if num_values > MAX_PROMPT_LOGPROBS:
        name = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        raise InvalidRequest(
            f"{num_prompt_tokens:,} tokens of prompts with {1 + request.num_prompt_candidates} "
            f"log-probabilities each are {num_values:,}; at most {MAX_PROMPT_LOGPROBS:,} are told. "
            f"Lower {name}, or send less.",
            param=name,
        )


def to_sampling_params(
    request: TextRequest,
    *,
    max_tokens: int,
    vocab_size: int,
    end_token_ids: Sequence[int],
    fresh_seed: Callable[[], int],
    grammar: str | None = None,
) -> SamplingParams:
    """The engine's sampling parameters. `grammar` is what the answer must follow.

    Raises InvalidRequest for ids outside the vocabulary.
    """
    stop_ids = _known_ids(request.stop_token_ids or (), vocab_size, "stop_token_ids")
    biased = _known_ids([int(token) for token in request.logit_bias or ()], vocab_size, "logit_bias")
    ends = () if request.ignore_eos else tuple(end_token_ids)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        top_k=min(request.top_k, vocab_size) if request.top_k is not None and request.top_k > 0 else None,
        min_p=_or(request.min_p, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        logit_bias=dict(zip(biased, (request.logit_bias or {}).values(), strict=True)),
        logprobs=request.num_drawn_logprobs,
        prompt_logprobs=request.num_prompt_candidates,
        beam=request.beam,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(dict.fromkeys((*ends, *stop_ids))),
        grammar=grammar,
        seed=(fresh_seed() if request.seed is None else request.seed) & _UINT64_MASK,
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
