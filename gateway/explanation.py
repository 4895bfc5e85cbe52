"""Why a prompt was a hit or not, in words, and at which message it parted from what was cached.

The message is found by rendering beginnings of the conversation: it is the last of the shortest one whose ids
reach past the token. That costs a few renderings, so it is done only when a client asks.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from engine.cache_messages import CacheReport, MissReason
from gateway.conversation.briefing import NOTHING, Briefing
from gateway.conversation.prompt import Prompt
from gateway.rendering import ChatRenderer, num_common
from gateway.wire.cache_answers import CacheExplanation, PartedAt, TierTokens, has_parted
from gateway.wire.messages import Message

__all__ = ["Explainer", "explain_plain"]

_HINTS: Mapping[MissReason, str] = {
    "none": "All of the prompt was found but what must always be computed, its last token.",
    "empty": "Nothing that you may see begins like this prompt. It is kept now: the same beginning will be "
    "found next time.",
    "new": "What was cached ends here, and what follows was not seen before: as it should be in a new turn.",
    "parted": "What was cached goes on otherwise from here. If this message should be the same as before, "
    "look for a date, an id or an order in it that changes; put what changes last.",
    "evicted": "This was cached, and had to make room for others. A pinned session stays; a larger cache or "
    "a host tier keeps more.",
    "recomputed": "This lies on a colder tier, and computing it again was faster than bringing it back. "
    "Resume a session ahead of its next turn.",
    "bypassed": "This request asked for what only a computed prompt can give, so nothing was looked up.",
}


class Explainer:
    """Explains reports of one model's prompts."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer

    async def explain(
        self,
        report: CacheReport,
        prompt: Prompt,
        messages: Sequence[Message],
        namespace: bytes,
        briefing: Briefing = NOTHING,
    ) -> CacheExplanation:
        """The report in the client's words. The prompt was rendered from `messages` and `briefing`."""
        if not has_parted(report):
            return _explanation(report, None)
        token = report.parted_at

        def num_tokens(num_messages: int) -> int:
            """How many tokens of the prompt the first messages make: none where the template refuses them."""
            try:
                part = self._renderer.render_now(
                    messages[:num_messages],
                    namespace,
                    now=datetime.now(),
                    add_generation_prompt=False,
                    briefing=briefing,
                )
            except ValueError:
                return 0
            return num_common(part.ids, prompt.ids)

        message = await asyncio.to_thread(_message_at, token, len(messages), num_tokens)
        return _explanation(report, PartedAt(token=token, message=message))


async def explain_plain(report: CacheReport) -> CacheExplanation:
    """The report of a prompt that has no messages, in the client's words."""
    parted_at = PartedAt(token=report.parted_at, message=None) if has_parted(report) else None
    return _explanation(report, parted_at)


def _message_at(token: int, num_messages: int, num_tokens: Callable[[int], int]) -> int | None:
    """The message in which a token of the prompt stands; None for what the template adds at the end."""
    low, high = 0, num_messages
    while low < high:
        middle = (low + high) // 2
        if num_tokens(middle + 1) > token:
            high = middle
        else:
            low = middle + 1
    return low if low < num_messages else None


def _explanation(report: CacheReport, parted_at: PartedAt | None) -> CacheExplanation:
    return CacheExplanation(
        tokens=TierTokens.of(report),
        computed=report.num_computed_tokens,
        copied_blocks=report.num_copied_blocks,
        parted_at=parted_at,
        reason=report.reason,
        hint=_HINTS[report.reason],
    )
