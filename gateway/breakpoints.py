"""Where the reusable beginnings of a prompt end that its client has marked, in tokens.

A place is found by rendering with a mark there: what stands before it is a beginning of the text, and as many
ids as that shares with the prompt lie before it whole. Places that the template does not show are left out.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.conversation.prompt import Prompt
from gateway.rendering import ChatRenderer, num_common
from gateway.wire.messages import Message
from gateway.wire.prompt_cache import Ttl

__all__ = ["End", "find_ends"]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a reusable beginning."""

    num_tokens: int
    ttl: Ttl | None  # None: the request's


async def find_ends(
    renderer: ChatRenderer,
    prompt: Prompt,
    messages: Sequence[Message],
    *,
    namespace: bytes,
    num_before: int,
    num_latest: int,
    briefing: Briefing = NOTHING,
) -> list[End]:
    """The latest so many of a request's breakpoints, in their order. `messages` are those that the prompt was
    rendered from, the first `num_before` of them not the request's own.
    """
    marked = [
        (place, each.offset, each.ttl)
        for place, message in enumerate(messages)
        if place >= num_before
        for each in message.breakpoints
    ][-num_latest:]
    if not marked:
        return []

    def work() -> "list[array[int]]":
        try:
            return renderer.beginnings_now(
                messages,
                [(place, offset) for place, offset, _ in marked],
                namespace,
                now=datetime.now(),
                briefing=briefing,
            )
        except ValueError:
            return []  # no character is left to mark with: as if the template showed none of them

    found = await renderer.beside(work, messages, briefing)
    ends = [End(num_common(ids, prompt.ids), ttl) for ids, (_, _, ttl) in zip(found, marked, strict=False)]
    return [end for end in ends if end.num_tokens]
