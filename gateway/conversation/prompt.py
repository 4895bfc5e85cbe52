"""The entrance to the room: messages to a prompt's ids, and what a stream needs to turn ids into text again.

It owns the pairing of renderer, transcripts and tokenizer for one model. Invariant: what `render` returns is
what `record` takes, so an answer is remembered for exactly the prompt that it continued.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from engine.messages import Vocabulary
from gateway.conversation.answers import Answer, Opening, answers_in
from gateway.conversation.briefing import NOTHING, Briefing
from gateway.conversation.detokenizer import Detokenizer
from gateway.conversation.messages import Message
from gateway.conversation.model_text import load_model_text
from gateway.conversation.renderer import Renderer
from gateway.conversation.runs import Rendering
from gateway.conversation.spelling import Spelling
from gateway.conversation.text_model import TextModel
from gateway.conversation.tokenizer import Tokenizer
from gateway.conversation.transcript import Transcripts

__all__ = ["Prompt", "Prompts", "load_prompts"]

_MAX_RECALLED = 64  # answers of one conversation
_TAIL_UNITS = 4
_ANY_DATE = datetime(2026, 1, 1)


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
        self.spelling = Spelling(model.tokenizer)
        self.max_token_bytes = _max_token_bytes(model.tokenizer)  # of any token
        self.template_asks = model.template.asked
        self.template_source = model.template.source
        self._start = () if model.bos_token_id is None else (model.bos_token_id,)
        self._renderer = Renderer(model.template, model.tokenizer)
        self._transcripts = Transcripts(model.tokenizer, max_bytes=transcript_bytes)
        self._opening = self._find_opening()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tenant: str,
        now: datetime,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        drawn: Mapping[int, bytes] | None = None,
        briefing: Briefing = NOTHING,
    ) -> Prompt:
        """Raises ValueError (TemplateRefused, ContinuationRefused) for messages that make no prompt; its text
        is for the client. `drawn` has the ids of earlier answers, packed int32, by their message's index.

        Work grows with the length of the messages: a long one belongs in a thread.
        """
        rendering = self._renderer.render(
            messages,
            now=now,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            briefing=briefing,
        )
        answers = self._answers(rendering, messages, drawn or {}, tenant, now, briefing)
        return Prompt(self._transcripts.encode(tenant, rendering, answers), rendering, tenant)

    def beginnings(
        self,
        messages: Sequence[Message],
        ends: Sequence[tuple[int, int]],
        *,
        tenant: str,
        now: datetime,
        briefing: Briefing = NOTHING,
    ) -> "list[array[int]]":
        """The ids of what stands before each of some places: a message's index, and an offset into its
        content. None of them where the template does not show the place. Raises ValueError.
        """
        renderings = self._renderer.render_beginnings(messages, ends, now=now, briefing=briefing)
        return [array("i") if each is None else self._transcripts.encode(tenant, each) for each in renderings]

    def encode(self, text: str) -> "array[int]":
        """Plain text as a prompt of its own, typecode "i": no template, and spellings of special tokens are
        ordinary characters. The beginning-of-text token stands first where the model's tokenizer adds one.

        Work grows with the length of the text: a long one belongs in a thread.
        """
        return array("i", [*self._start, *self.tokenizer.encode(text)])

    def record(self, prompt: Prompt, text: str, ids: Sequence[int]) -> bool:
        """Remember a finished answer: the text that the client was sent, and the ids that were drawn, without
        the one that ended it.

        Safe to call for every answer; says whether the ids stand for the text and were kept.
        """
        return self._transcripts.record(prompt.tenant, prompt.rendering, text=text, ids=ids)

    def tail(self, prompt: Prompt) -> str:
        """The end of a prompt as it is spelled, special tokens too."""
        names = {token_id: text for text, token_id in self.tokenizer.special_tokens.items()}
        last = prompt.rendering.units[-_TAIL_UNITS:]
        return "".join([names[unit] if isinstance(unit, int) else unit for unit in last])

    def vocabulary(self, marks: Mapping[str, int]) -> Vocabulary:
        """The model's tokens, as the engine must know them to hold answers to grammars. `marks` are tokens
        that stand for no text there, beside control tokens.
        """
        tokenizer = self.tokenizer
        names = {i: text for text, i in tokenizer.special_tokens.items() if i in tokenizer.control_ids}
        names |= {token_id: mark for mark, token_id in marks.items()}
        return Vocabulary(
            tokens=[tokenizer.decode_bytes(token_id) for token_id in range(tokenizer.vocab_size)],
            control_names=names,
            end_token_ids=list(self.end_token_ids),
        )

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one choice."""
        return Detokenizer(self.tokenizer)

    def _find_opening(self) -> Opening | None:
        """What stands before every answer; None when the template refuses the plainest conversation."""
        asked = [{"role": "user", "content": "x"}]
        try:
            return Opening.of(self._renderer.render(asked, now=_ANY_DATE))
        except ValueError:
            return None

    def _answers(
        self,
        rendering: Rendering,
        messages: Sequence[Message],
        drawn: Mapping[int, bytes],
        tenant: str,
        now: datetime,
        briefing: Briefing,
    ) -> Mapping[int, Answer]:
        if not drawn:
            return {}
        written = {place: self._written(messages[place], ids) for place, ids in drawn.items()}
        if self._opening is not None:
            found = answers_in(rendering, messages, written, self._opening)
            if found is not None:
                return found
        self._recall(messages, written, tenant, now, briefing)
        return {}

    def _written(self, message: Message, ids: bytes) -> tuple[str, bytes]:
        """What the model wrote of a message: more than its content, where it called or thought."""
        if not any(message.get(name) for name in ("tool_calls", "reasoning_content", "reasoning")):
            return message.get("content") or "", ids
        data = b"".join([self.tokenizer.decode_bytes(token_id) for token_id in array("i", ids)])
        return data.decode(errors="replace"), ids

    def _recall(
        self,
        messages: Sequence[Message],
        written: Mapping[int, tuple[str, bytes]],
        tenant: str,
        now: datetime,
        briefing: Briefing,
    ) -> None:
        """Remember answers one by one, as if they had just been given: each costs a rendering.

        The newest come first, and the first that is known ends it: the older ones were met with it.
        """
        for place in sorted(written, reverse=True)[:_MAX_RECALLED]:
            try:
                rendering = self._renderer.render(messages[:place], now=now, briefing=briefing)
            except ValueError:
                continue  # another model's template: nothing was recorded under it
            text, ids = written[place]
            if self._transcripts.knows(tenant, rendering, text):
                return
            self._transcripts.record(tenant, rendering, text=text, ids=array("i", ids))


def _max_token_bytes(tokenizer: Tokenizer) -> int:
    return max(len(tokenizer.decode_bytes(each)) for each in range(tokenizer.vocab_size))


def load_prompts(model_path: Path, *, transcript_bytes: int = 64 << 20) -> Prompts:
    """Read a model's tokenizer and template. Raises ValueError or OSError with a message for the operator."""
    return Prompts(load_model_text(model_path), transcript_bytes=transcript_bytes)
