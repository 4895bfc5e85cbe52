"""What the prompt cache's fields may say, and what they demand of a request's others."""

from gateway.errors import InvalidRequest
from gateway.wire.text_request import TextRequest

__all__ = ["check_prompt_cache"]

MAX_KEY_CHARACTERS = 1024


def check_prompt_cache(request: TextRequest) -> None:
    """Raise InvalidRequest for the first field that cannot be heeded."""
    key = request.prompt_cache_key
    if key is not None and len(key) > MAX_KEY_CHARACTERS:
        raise InvalidRequest(
            f"prompt_cache_key has {len(key):,} characters; at most {MAX_KEY_CHARACTERS:,} are allowed.",
            param="prompt_cache_key",
        )
    if not request.prewarms:
        return
    for name, is_there in (
        ("n", request.num_run != 1),
        ("use_beam_search", bool(request.use_beam_search)),
        ("min_tokens", bool(request.min_tokens)),
        ("prompt_logprobs", request.num_prompt_candidates is not None),
        ("cache", request.cache_hints.is_side),
    ):
        if is_there:
            raise InvalidRequest(
                f"{name} says nothing with prompt_cache_options.prewarm, which only fills the cache; leave "
                "one of them out.",
                param=name,
            )
