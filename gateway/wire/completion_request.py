"""The body of POST /v1/completions: its prompts, and what else it has beside the fields of all requests for
text.
"""

from typing import Annotated, Any

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from gateway.wire.text_request import TextRequest

__all__ = ["MAX_PROMPTS", "CompletionRequest", "PromptText"]

PromptText = str | list[int]  # text, or ids of tokens

MAX_PROMPTS = 128
_DEFAULT_MAX_TOKENS = 16  # the protocol's


def _list_of_prompts(value: object) -> list[PromptText]:
    prompts: list[Any] = value if isinstance(value, list) else [value]
    kinds = set(map(type, prompts))
    if kinds == {int} and isinstance(value, list):
        return [prompts]
    if len(prompts) > MAX_PROMPTS:
        raise PydanticCustomError(
            "prompt",
            "has {count} prompts; at most {limit} are allowed",
            {"count": len(prompts), "limit": MAX_PROMPTS},
        )
    for place, prompt in enumerate(prompts):
        path = {"path": f"{place}"} if isinstance(value, list) else {}
        # a bool is no id, and a list of a million ids is looked through without a loop
        is_ids = isinstance(prompt, list) and set(map(type, prompt)) <= {int}
        if len(kinds) > 1 or not (isinstance(prompt, str) or (is_ids and isinstance(value, list))):
            raise PydanticCustomError(
                "prompt", "must be a string, an array of strings, an array of token ids, or an array of these"
            )
        if not prompt:
            raise PydanticCustomError("prompt", "is empty; send some text or token ids", path)
    if not prompts:
        raise PydanticCustomError("prompt", "is empty; send some text or token ids")
    return prompts


_Prompts = str | list[str] | list[int] | list[list[int]]


class CompletionRequest(TextRequest):
    """A request whose fields have the right types; out of `parse_completion_request` they are in range."""

    prompt: Annotated[
        list[PromptText], PlainValidator(_list_of_prompts, json_schema_input_type=_Prompts)
    ]  # at least one, none of them empty
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def num_run(self) -> int:
        """See TextRequest."""
        return self.best_of if self.best_of is not None else self.num_choices

    @property
    def default_limit(self) -> int:
        """See TextRequest."""
        return _DEFAULT_MAX_TOKENS

    @property
    def scores_only(self) -> bool:
        """Whether the prompt is all that is told."""
        return self.max_tokens == 0

    @property
    def num_told(self) -> int | None:
        """See TextRequest."""
        return self.logprobs

    @property
    def num_drawn_logprobs(self) -> int | None:
        """See TextRequest: the best of several are found by them."""
        if self.logprobs is None and self.num_run > self.num_choices:
            return 0
        return self.logprobs

    @property
    def num_prompt_candidates(self) -> int | None:
        """See TextRequest."""
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((each for each in asked if each is not None), default=None)
