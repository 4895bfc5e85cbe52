"""The ranges of a completion request's own fields, and what its fields demand of each other."""

from engine.sequence import MAX_TOP_LOGPROBS
from gateway.errors import InvalidRequest
from gateway.wire.completion_request import CompletionRequest
from gateway.wire.limits import MAX_CHOICES, Range, check_common, check_ranges

__all__ = ["COMPLETION_RANGES", "MAX_SEQUENCES", "check_completion"]

MAX_SEQUENCES = 512  # answers to all prompts of one request
_INT64 = 1 << 63
COMPLETION_RANGES = {
    "max_tokens": Range(0, _INT64 - 1),
    "logprobs": Range(0, MAX_TOP_LOGPROBS),
    "best_of": Range(1, MAX_CHOICES),
}


def check_completion(request: CompletionRequest) -> None:
    """Raise InvalidRequest for the first field out of range."""
    check_ranges(request, COMPLETION_RANGES)
    check_common(request)
    _check_best_of(request)
    _check_scoring(request)
    num_prompts = len(request.prompt)
    if num_prompts * request.num_run > MAX_SEQUENCES:
        raise InvalidRequest(
            f"{num_prompts} prompts with {request.num_run} answers each are more than the {MAX_SEQUENCES} "
            "answers of one request; send fewer prompts.",
            param="prompt",
        )
    if num_prompts > 1 and request.cache_hints.explain:
        raise InvalidRequest("cache.explain tells of one prompt; send one.", param="cache")


def _check_best_of(request: CompletionRequest) -> None:
    if request.best_of is None:
        return
    if request.use_beam_search:
        raise InvalidRequest(
            "best_of cannot be heeded with use_beam_search: beam_width says how many answers are followed.",
            param="best_of",
            code="unsupported_parameter",
        )
    if request.best_of < request.num_choices:
        raise InvalidRequest(
            f"best_of is {request.best_of}, less than the {request.num_choices} of n.", param="best_of"
        )
    if request.stream and request.best_of > request.num_choices:
        raise InvalidRequest(
            "best_of chooses among finished answers, so it is not streamed; send it equal to n, or without "
            "stream.",
            param="best_of",
        )


def _check_scoring(request: CompletionRequest) -> None:
    if not request.scores_only:
        return
    if not request.echo:
        raise InvalidRequest(
            "max_tokens: 0 needs echo: true; nothing else would be told.", param="max_tokens"
        )
    if request.use_beam_search:
        raise InvalidRequest(
            "use_beam_search needs tokens to search for; max_tokens is 0.", param="max_tokens"
        )
