"""From a request's messages to typed runs: forms, guard, template, split, in this order.

It owns the order and the rule for answers to be continued. Invariant: the same messages, template and date
give the same rendering.
"""

from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.conversation.messages import Message, normalize, strings_of
from gateway.conversation.runs import Guard, Rendering, SpecialTokens
from gateway.conversation.template import ChatTemplate, TemplateRefused
from gateway.conversation.tokenizer import Tokenizer
from gateway.conversation.tool_prompt import call_text, with_results, with_tools

__all__ = ["ContinuationRefused", "Renderer"]


class ContinuationRefused(ValueError):
    """There is no unfinished answer to continue."""


class Renderer:
    """One template over one tokenizer's special tokens."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._written = SpecialTokens(tokenizer.special_tokens)
        control = tokenizer.control_ids
        # A template that speaks of a word such as <think> must be able to read it in what clients send.
        read = (s for s, i in tokenizer.special_tokens.items() if i not in control and s in template.source)
        self._guarded = self._written.without(read)
        self._model = blake2b(tokenizer.digest + "\n".join(template.texts).encode(), digest_size=32).digest()

    def render(
        self,
        messages: Sequence[Message],
        *,
        now: datetime,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        briefing: Briefing = NOTHING,
    ) -> Rendering:
        """Raises TemplateRefused, ContinuationRefused and TooManyPrivateCharacters, all ValueErrors.

        To continue the final message is to leave its turn open, so that goes without a generation prompt.
        """
        if continue_final_message:
            _check_continuation(messages, add_generation_prompt)
        try:
            guard, hidden, told = self._hide(messages, briefing)
        except RecursionError:
            raise TemplateRefused("the messages nest too deeply to be rendered") from None
        mark = guard.mark() if continue_final_message else None
        if mark is not None:
            hidden[-1]["content"] += mark
        rendered = self._template.render(
            hidden, now=now, add_generation_prompt=add_generation_prompt, briefing=told
        )
        if mark is not None:
            rendered = _cut_at(rendered, mark)
        return Rendering(guard.split(rendered, written=self._written), self._model)

    def render_beginnings(
        self,
        messages: Sequence[Message],
        ends: Sequence[tuple[int, int]],
        *,
        now: datetime,
        briefing: Briefing = NOTHING,
    ) -> list[Rendering | None]:
        """What is rendered before each of some places: a message's index, and an offset into its content.

        None where the template does not show the place. Raises what `render` does.
        """
        template = self._template
        told_texts = [
            text for each in (messages, briefing.tools, briefing.words) for text in strings_of(each)
        ]
        unused = Guard(self._guarded, texts=[*told_texts, *template.texts])
        marks = [unused.mark() for _ in ends]
        marked = [dict(message) for message in messages]
        for mark, (index, offset) in sorted(zip(marks, ends, strict=True), key=lambda each: -each[1][1]):
            content = marked[index]["content"]
            marked[index]["content"] = content[:offset] + mark + content[offset:]
        guard, hidden, told = self._hide(marked, briefing)
        rendered = template.render(hidden, now=now, add_generation_prompt=False, briefing=told)
        unmarked = str.maketrans(dict.fromkeys(marks, ""))
        beginnings = [rendered.rpartition(mark) for mark in marks]
        return [
            Rendering(guard.split(before.translate(unmarked), written=self._written), self._model)
            if found
            else None
            for before, found, _ in beginnings
        ]

    def _hide(
        self, messages: Sequence[Message], briefing: Briefing
    ) -> tuple[Guard, list[dict[str, Any]], Briefing]:
        template = self._template
        plain = self._written_out(messages, briefing)
        tools = list(briefing.tools) if template.names_tools else []
        words = dict(briefing.words)
        texts = [*strings_of(plain), *strings_of(tools), *strings_of(words), *template.texts]
        guard = Guard(self._guarded, texts=texts, spoken=template.words)
        # Templates build tokens from roles, so roles stay as they are: one of a few words, not free text.
        hidden = [guard.hide(message) | {"role": message["role"]} for message in plain]
        return guard, hidden, Briefing(guard.hide(tools), guard.hide(words))

    def _written_out(self, messages: Sequence[Message], briefing: Briefing) -> list[dict[str, Any]]:
        """Messages with all about tools that the template itself would not say, whether or not this request
        has any: a history reads the same in all.
        """
        template = self._template
        plain = normalize(
            messages,
            names_developer=template.names_developer,
            write_call=None if template.names_tool_calls else call_text,
            arguments=template.arguments,
        )
        if briefing.tools and not template.names_tools:
            plain = with_tools(plain, briefing.tools, takes_system=template.takes_system)
        return plain if template.names_tool else with_results(plain)


def _check_continuation(messages: Sequence[Message], add_generation_prompt: bool) -> None:
    if add_generation_prompt:
        raise ContinuationRefused("continue_final_message and add_generation_prompt exclude each other")
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("content") is None:
        raise ContinuationRefused(
            "continue_final_message needs a last message of role assistant with content"
        )


def _cut_at(rendered: str, mark: str) -> str:
    before, found, _ = rendered.rpartition(mark)
    if not found:
        raise TemplateRefused("the model's chat template drops the message that was to be continued")
    return before
