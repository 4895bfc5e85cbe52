"""What a request has cost, as all answers tell it."""

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["CacheWrites", "CompletionTokensDetails", "PromptProgress", "PromptTokensDetails", "Usage"]


class CacheWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that were written and are kept for a time, by how long; the longest counts."""

    ttl_30m_tokens: int
    ttl_12h_tokens: int


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompts' tokens came from, and how many others can be found from now on."""

    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: CacheWrites | UnsetType = UNSET  # when something was to be kept for a time


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """What the answers' tokens were spent on."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far prompts are that are being computed; a part that was found is there at once."""

    prompt_tokens: int
    computed: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request: every prompt once, the answers summed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()
