"""Prompts that no template renders: text as it stands, or ids of tokens.

It owns what is checked of them and how they are told again where a client wants an echo. Spellings of special
tokens in text are ordinary characters. Long text is worked on in a thread, so other streams do not wait.
"""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import EngineInfo
from gateway.conversation.detokenizer import Detokenizer
from gateway.conversation.prompt import Prompts
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.generation import Echo
from gateway.wire.completion_request import PromptText

__all__ = ["PlainPrompt", "PlainPrompts"]

_LONG = 20_000  # characters or ids


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """What the engine is sent, and how it is echoed."""

    ids: "array[int]"  # typecode "i"
    echo: Echo | None
    before: Sequence[int]  # ids whose text an answer may have to complete: text ends with a whole character


class PlainPrompts:
    """Makes prompts for one model."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    async def make(
        self, prompts: Sequence[PromptText], info: EngineInfo, *, echo: bool, with_logprobs: bool
    ) -> list[PlainPrompt]:
        """All prompts of a request. Raises InvalidRequest for ids outside the vocabulary, and ContextTooLong
        for text that cannot fit whatever its tokens turn out to be.
        """
        for place, prompt in enumerate(prompts):
            self._check(prompt, info, "prompt" if len(prompts) == 1 else f"prompt.{place}")

        def work() -> list[PlainPrompt]:
            return [self._make(prompt, echo, with_logprobs) for prompt in prompts]

        return await asyncio.to_thread(work) if sum(map(len, prompts)) > _LONG else work()

    def _check(self, prompt: PromptText, info: EngineInfo, path: str) -> None:
        limit = info.max_request_tokens
        if isinstance(prompt, str):
            if len(prompt) // self._prompts.max_token_bytes > limit:
                raise ContextTooLong(
                    f"{path} has {len(prompt):,} characters; the {limit:,} tokens of prompt and answer "
                    "together cannot hold them. Shorten it.",
                    param="prompt",
                )
            return
        if min(prompt) < 0 or max(prompt) >= info.vocab_size:
            outside = next(each for each in prompt if not 0 <= each < info.vocab_size)
            raise InvalidRequest(
                f"{path} holds token {str(outside)[:24]}; this model has 0 to {info.vocab_size - 1:,}.",
                param="prompt",
            )

    def _make(self, prompt: PromptText, echo: bool, with_logprobs: bool) -> PlainPrompt:
        if isinstance(prompt, str):
            ids = self._prompts.encode(prompt)
            told = self._echo_of_text(prompt, ids, with_logprobs) if echo else None
            return PlainPrompt(ids, told, ())
        ids = array("i", prompt)
        text, offsets = self._decoded(ids) if echo else ("", [])
        told = Echo(text=text, offsets=offsets, with_logprobs=with_logprobs) if echo else None
        return PlainPrompt(ids, told, ids)

    def _echo_of_text(self, text: str, ids: "array[int]", with_logprobs: bool) -> Echo:
        """The text as it was sent, not as its tokens spell it."""
        if not with_logprobs:
            return Echo(text=text, offsets=(), with_logprobs=False)
        decoded, offsets = self._decoded(ids)
        # some tokenizers put a blank before every text
        lead = int(decoded.startswith(" ") and not text.startswith(" "))
        offsets = [min(max(0, offset - lead), len(text)) for offset in offsets]
        return Echo(text=text, offsets=offsets, with_logprobs=True)

    def _decoded(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text of ids, and where each begins in it."""
        detokenizer = Detokenizer(self._prompts.tokenizer)
        parts: list[str] = []
        offsets: list[int] = []
        length = 0
        for token_id in ids:
            offsets.append(length)
            parts.append(detokenizer.push(token_id))
            length += len(parts[-1])
        return "".join(parts), offsets
