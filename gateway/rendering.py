"""Messages to prompts, without keeping other streams waiting: what is long is rendered in a thread.

It owns the one place where the template's refusals become a client's errors, and where text that can never
fit is refused before any of it is tokenized.
"""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.conversation.prompt import Prompt, Prompts
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.wire.messages import Message

__all__ = ["ChatRenderer", "num_characters", "num_common"]

T = TypeVar("T")

_LONG_TEXT = 20_000  # characters
_MESSAGE_COST = 256  # characters that take as long as rendering a message without any


class ChatRenderer:
    """Renders the messages of chat requests, sessions and shared prefixes for one model."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts

    async def render(
        self,
        messages: Sequence[Message],
        namespace: bytes,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        drawn: Mapping[int, bytes] | None = None,
        briefing: Briefing = NOTHING,
    ) -> Prompt:
        """The prompt in a namespace. `drawn` has the packed int32 ids of earlier answers, by their index.

        Raises InvalidRequest when the template refuses the messages.
        """

        def work() -> Prompt:
            return self.render_now(
                messages,
                namespace,
                now=datetime.now(),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                drawn=drawn,
                briefing=briefing,
            )

        try:
            return await self.beside(work, messages, briefing)
        except ValueError as refusal:
            raise InvalidRequest(f"{refusal}"[:500], param="messages") from None

    def render_now(
        self,
        messages: Sequence[Message],
        namespace: bytes,
        *,
        now: datetime,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        drawn: Mapping[int, bytes] | None = None,
        briefing: Briefing = NOTHING,
    ) -> Prompt:
        """The same, here and now. Raises ValueError when the template refuses the messages."""
        return self.prompts.render(
            [message.for_template() for message in messages],
            # transcripts are as private as the cache: a salt sets them apart too
            tenant=namespace.hex(),
            now=now,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            drawn=drawn,
            briefing=briefing,
        )

    def beginnings_now(
        self,
        messages: Sequence[Message],
        ends: Sequence[tuple[int, int]],
        namespace: bytes,
        *,
        now: datetime,
        briefing: Briefing = NOTHING,
    ) -> "list[array[int]]":
        """The ids of what stands before each of some places: a message's index, and an offset into its
        content. Raises ValueError.
        """
        plain = [message.for_template() for message in messages]
        return self.prompts.beginnings(plain, ends, tenant=namespace.hex(), now=now, briefing=briefing)

    async def beside(self, work: Callable[[], T], messages: Sequence[Message], briefing: Briefing) -> T:
        """Do work on messages: in a thread if they are long, for short ones are not worth a thread."""
        return await asyncio.to_thread(work) if _cost(messages, briefing) > _LONG_TEXT else work()

    def refuse_hopeless_length(self, messages: Sequence[Message], limit: int) -> None:
        """Refuse text that cannot fit into `limit` tokens whatever they turn out to be.

        Raises ContextTooLong.
        """
        if self.is_hopeless(messages, limit):
            length = num_characters(messages)
            raise ContextTooLong(
                f"The {len(messages):,} messages have {length:,} characters; the {limit:,} tokens of prompt "
                "and answer together cannot hold them. Shorten the messages.",
                param="messages",
            )

    def is_hopeless(self, messages: Sequence[Message], limit: int) -> bool:
        """Whether text cannot fit into `limit` tokens, of which each message takes one beside its text's."""
        return num_characters(messages) // self.prompts.max_token_bytes + len(messages) >= limit


def _cost(messages: Sequence[Message], briefing: Briefing) -> int:
    """What rendering takes, in characters."""
    tools = _length([*briefing.tools])
    return num_characters(messages) + tools + _MESSAGE_COST * (len(messages) + len(briefing.tools))


def num_characters(messages: Sequence[Message]) -> int:
    """The length of every string that the template is given."""
    return sum(_num_characters(message) for message in messages)


def _num_characters(message: Message) -> int:
    length = len(message.content or "") + len(message.name or "") + len(message.tool_call_id or "")
    length += len(message.reasoning_content or message.reasoning or "")
    return length + _length(message.tool_calls or [])


def _length(values: Sequence[object]) -> int:
    """Of every string in JSON-like data, and one for what is none."""
    length = 0
    waiting = list(values)
    while waiting:  # not by recursion: clients choose the depth
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value
        else:
            length += len(value) if isinstance(value, str) else 1
    return length


def num_common(one: "array[int]", other: "array[int]") -> int:
    """How many ids two prompts begin with alike."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(place for place in range(length) if one[place] != other[place])
