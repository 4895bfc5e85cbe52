"""What the readers of model files answer with. It owns the shape, and the rule for what ends an answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.tokenizer import Tokenizer

__all__ = ["TextModel", "end_token_ids", "template_or_default"]

# Tokens that end a turn or a text wherever a vocabulary has them, whatever its files declare.
_ENDS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)
# Where an answer is several messages on channels, this one ends a message and not the answer; a call ends it.
_CHANNEL, _MESSAGE_END, _CALL_END = "<|channel|>", "<|end|>", "<|call|>"


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model as far as text is concerned."""

    tokenizer: Tokenizer
    template: ChatTemplate
    end_token_ids: tuple[int, ...]  # drawing one ends an answer; ascending
    bos_token_id: int | None = None  # stands before a text that no template renders


def end_token_ids(special: Mapping[str, int], declared: Iterable[int | None]) -> tuple[int, ...]:
    """The ids that a model's files declare, and those of the well-known end tokens among its special ones."""
    ends = {*_ENDS, _CALL_END} - {_MESSAGE_END} if _CHANNEL in special else _ENDS
    known = (special[spelling] for spelling in ends if spelling in special)
    return tuple(sorted({*known, *(token_id for token_id in declared if token_id is not None)}))


def template_or_default(source: str | None, *, bos_token: str, eos_token: str) -> ChatTemplate:
    """The model's own template, or ChatML for a model that has none."""
    return ChatTemplate(CHATML if source is None else source, bos_token=bos_token, eos_token=eos_token)
