"""A model's chat template: messages in, one string out.

It owns the sandbox in which the template runs and the words that templates expect there (`raise_exception`,
`strftime_now`, `tojson`, `generation`, `bos_token`). It knows no special ids. Invariant: whatever a request
makes a template do ends in text or in TemplateRefused, and the date comes from the caller.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.conversation.messages import ArgumentForm

__all__ = ["CHATML", "ChatTemplate", "TemplateRefused"]

# what a template takes is found by trying
_ANY_DATE = datetime(2026, 1, 1)
_SYSTEM = {"role": "system", "content": "words of the system"}
_USER = {"role": "user", "content": "words of the user"}
_RESULT = {"role": "tool", "content": "a result", "tool_call_id": "abcdefghi"}

# For models that come without a template: the form that most small chat models were trained on.
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TemplateRefused(ValueError):
    """The messages do not suit the template; the text is the template's own where it gave one."""


class ChatTemplate:
    """A compiled template, the words that its source uses, and the names that it `asked` to be given."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises ValueError when the source is no template."""
        self.source = source
        self.words = frozenset(re.findall(r"\w+", source))
        self.names_developer = "developer" in source
        self.names_tool_calls = "tool_calls" in source
        self.names_tools = "tools" in self.words
        self.names_tool = "tool" in self.words
        self._words = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template, self.asked = _compile(source)
        except TemplateError as error:
            raise ValueError(f"the model's chat template cannot be read: {error}") from error
        self._takes_parts = False
        if not self._shows(_USER):
            self._takes_parts = True
            self._takes_parts = self._shows(_USER)
        self.takes_system = self._takes(_SYSTEM, _USER) or not self._takes(_USER)
        self.arguments: ArgumentForm = "any"
        if self._takes(_USER, _calling({}), _RESULT) != self._takes(_USER, _calling("{}"), _RESULT):
            self.arguments = "data" if self._takes(_USER, _calling({}), _RESULT) else "text"

    @property
    def texts(self) -> tuple[str, ...]:
        """All text of the template's own that may come to stand in a prompt."""
        return (self.source, *self._words.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        now: datetime,
        add_generation_prompt: bool,
        briefing: Briefing = NOTHING,
    ) -> str:
        """Raises TemplateRefused."""
        # a template may ask whether there are tools at all, so none are nothing rather than an empty list
        tools = {"tools": briefing.tools} if briefing.tools else {}
        try:
            return self._template.render(
                messages=_in_parts(messages) if self._takes_parts else messages,
                add_generation_prompt=add_generation_prompt,
                strftime_now=now.strftime,
                **{**briefing.words, **tools, **self._words},
            )
        except TemplateRefused:
            raise
        except Exception as error:
            # The template is the model's code and the messages are the client's: nothing that fails here is
            # ours to mend.
            raise TemplateRefused(
                f"the model's chat template cannot render these messages: {error}"
            ) from error

    def _tried(self, *messages: Mapping[str, Any]) -> str | None:
        try:
            return self.render(messages, now=_ANY_DATE, add_generation_prompt=False)
        except TemplateRefused:
            return None

    def _takes(self, *messages: Mapping[str, Any]) -> bool:
        return self._tried(*messages) is not None

    def _shows(self, message: Mapping[str, Any]) -> bool:
        return message["content"] in (self._tried(message) or "")


class _Generation(Extension):
    """`{% generation %}`, by which a template says what the model writes: it is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - so it is named by Jinja's own class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements up to `{% endgeneration %}`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _in_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Contents as templates of models that see too want them."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}] if message["content"] else []}
        for message in messages
    ]


def _calling(arguments: object) -> dict[str, Any]:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _compile(source: str) -> tuple[Template, frozenset[str]]:
    """A template, and the names that it asks whoever renders it for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    asked = meta.find_undeclared_variables(environment.parse(source))
    return environment.from_string(source), frozenset(asked)


def _raise(message: str) -> NoReturn:
    raise TemplateRefused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter would escape it for HTML. Templates choose its form, as transformers
    lets them.
    """
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
