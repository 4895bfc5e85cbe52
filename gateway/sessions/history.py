"""What a session's history is for the model: its messages, and the very ids that were read and written.

It owns nothing: ids of answers lie in the rows, and every rendering is given them. What no prompt could ever
hold is not tokenized, and the engine is never asked about more than its longest request.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.errors import InvalidRequest
from gateway.rendering import ChatRenderer
from gateway.store.sessions import StoredMessage
from gateway.wire.messages import Message
from gateway.wire.stored import briefing_in, messages_of

__all__ = ["Histories", "History"]

_MAX_TRIED = 8  # shorter beginnings of a history that the template refuses


@dataclass(frozen=True, slots=True)
class History:
    """Messages, and of those that the model wrote its ids, packed int32, by their index.

    Beside them what the template was told when each answer was asked for, unless that was nothing: the cache
    holds the session as its last turn was rendered.
    """

    messages: Sequence[Message]
    drawn: Mapping[int, bytes]
    briefings: Mapping[int, Briefing] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: Sequence[StoredMessage]) -> "History":
        """As it was stored."""
        drawn = {place: each.token_ids for place, each in enumerate(stored) if each.token_ids is not None}
        briefings = {place: briefing_in(each.message) for place, each in enumerate(stored)}
        told = {place: briefing for place, briefing in briefings.items() if briefing}
        return cls(messages_of([each.message for each in stored]), drawn, told)

    @property
    def briefing(self) -> Briefing:
        """That of the last answer."""
        return self.briefings.get(max(self.drawn, default=-1), NOTHING)

    def first(self, num_messages: int) -> "History":
        """Its beginning."""
        drawn = {place: ids for place, ids in self.drawn.items() if place < num_messages}
        briefings = {place: each for place, each in self.briefings.items() if place < num_messages}
        return History(self.messages[:num_messages], drawn, briefings)

    def followed_by(
        self, messages: Sequence[Message], token_ids: "array[int]", briefing: Briefing
    ) -> "History":
        """With a turn more, the answer as its last message."""
        told = [*self.messages, *messages]
        last = len(told) - 1
        briefings = {**self.briefings, **({last: briefing} if briefing else {})}
        return History(told, {**self.drawn, last: token_ids.tobytes()}, briefings)


class Histories:
    """Histories, rendered for one model."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer

    async def ids(self, history: History, namespace: bytes, limit: int) -> "array[int]":
        """The first `limit` ids of a history.

        Raises InvalidRequest when no template takes it, and ContextTooLong when it can never be a prompt.
        """
        if not history.messages:
            return array("i")
        self._renderer.refuse_hopeless_length(history.messages, limit)
        prompt = await self._renderer.render(
            history.messages,
            namespace,
            add_generation_prompt=False,
            drawn=history.drawn,
            briefing=history.briefing,
        )
        return prompt.ids[:limit]

    async def known_ids(self, history: History, namespace: bytes, limit: int) -> "array[int]":
        """The same of its longest beginning that is not refused; none of it if there is no such."""
        num_messages = len(history.messages)
        while num_messages and self._renderer.is_hopeless(history.messages[:num_messages], limit):
            num_messages //= 2
        for length in range(num_messages, max(0, num_messages - _MAX_TRIED), -1):
            try:
                return await self.ids(history.first(length), namespace, limit)
            except InvalidRequest:
                continue
        return array("i")
