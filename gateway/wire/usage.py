"""What a request has cost, as all answers tell it."""

import msgspec

__all__ = ["CompletionTokensDetails", "PromptTokensDetails", "Usage"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where the prompts' tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """What the answers' tokens were spent on."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request: every prompt once, the answers summed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()
