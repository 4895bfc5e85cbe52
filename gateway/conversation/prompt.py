"""The entrance to the room: messages to a prompt's ids, and what a stream needs to turn ids into text again.

It owns the pairing of renderer, transcripts and tokenizer for one model. Invariant: what `render` returns is
what `record` takes, so an answer is remembered for exactly the prompt that it continued.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.conversation.detokenizer import Detokenizer
from gateway.conversation.messages import Message
from gateway.conversation.model_text import load_model_text
from gateway.conversation.renderer import Renderer
from gateway.conversation.runs import Rendering
from gateway.conversation.text_model import TextModel
from gateway.conversation.transcript import Transcripts

__all__ = ["Prompt", "Prompts", "load_prompts"]


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What the engine is sent, and how it came about."""

    ids: "array[int]"  # typecode "i"
    rendering: Rendering
    tenant: str


class Prompts:
    """One model's prompts. Holds no request; its methods may run in several threads."""

    def __init__(self, model: TextModel, *, transcript_bytes: int) -> None:
        self.tokenizer = model.tokenizer
        self.end_token_ids = model.end_token_ids  # drawing one ends an answer
        self.vocab_size = model.tokenizer.vocab_size
        self._renderer = Renderer(model.template, model.tokenizer)
        self._transcripts = Transcripts(model.tokenizer, max_bytes=transcript_bytes)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tenant: str,
        now: datetime,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> Prompt:
        """Raises ValueError (TemplateRefused, ContinuationRefused) for messages that make no prompt; its text
        is for the client.

        Work grows with the length of the messages: a long one belongs in a thread.
        """
        rendering = self._renderer.render(
            messages,
            now=now,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return Prompt(self._transcripts.encode(tenant, rendering), rendering, tenant)

    def record(self, prompt: Prompt, text: str, ids: Sequence[int]) -> bool:
        """Remember a finished answer: the text that the client was sent, and the ids that were drawn, without
        the one that ended it.

        Safe to call for every answer; says whether the ids stand for the text and were kept.
        """
        return self._transcripts.record(prompt.tenant, prompt.rendering, text=text, ids=ids)

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one choice."""
        return Detokenizer(self.tokenizer)


def load_prompts(model_path: Path, *, transcript_bytes: int = 64 << 20) -> Prompts:
    """Read a model's tokenizer and template. Raises ValueError or OSError with a message for the operator."""
    return Prompts(load_model_text(model_path), transcript_bytes=transcript_bytes)
