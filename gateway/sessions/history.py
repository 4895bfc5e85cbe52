"""What a session's history is for the model: its messages, and the very ids that were read and written.

It owns how many messages of each session this process has brought into the transcripts. After a restart
those are empty; the ids of answers lie in the rows. So a history is replayed before it is first rendered, and
what was added to it since then, here or by other gateways, before it is rendered again. The transcripts are
bounded: should they have let go of a session in the meantime, its text is tokenized anew.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime

from gateway.rendering import ChatRenderer, num_characters
from gateway.store.sessions import Session, StoredMessage
from gateway.wire.messages import Message
from gateway.wire.stored import messages_of

__all__ = ["Histories"]

_MAX_SESSIONS = 10_000


class Histories:
    """The histories of sessions, rendered."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._num_replayed: OrderedDict[str, int] = OrderedDict()  # session id -> messages

    async def messages(self, session: Session, history: Sequence[StoredMessage]) -> list[Message]:
        """The history as messages of a chat request. From now on rendering it gives the exact ids."""
        messages = messages_of([stored.message for stored in history])
        await self._replay(session, history, messages)
        return messages

    async def ids(self, session: Session, history: Sequence[StoredMessage]) -> bytes:
        """The ids of the history so far, packed int32. Raises InvalidRequest when no template takes it."""
        if not history:
            return b""
        messages = await self.messages(session, history)
        prompt = await self._renderer.render(messages, session.namespace, add_generation_prompt=False)
        return prompt.ids.tobytes()

    async def _replay(
        self, session: Session, history: Sequence[StoredMessage], messages: Sequence[Message]
    ) -> None:
        known = self._num_replayed.get(session.id, 0)
        answers = [stored for stored in history[known:] if stored.token_ids is not None]
        if answers:
            # each answer's prompt is rendered by itself
            amount = num_characters(messages) * len(answers)
            await self._renderer.beside(lambda: self._record(session.namespace, answers, messages), amount)
        self._note(session.id, len(history))

    def _record(
        self, namespace: bytes, answers: Sequence[StoredMessage], messages: Sequence[Message]
    ) -> None:
        now = datetime.now()
        for answer in answers:
            try:
                prompt = self._renderer.render_now(messages[: answer.position], namespace, now=now)
            except ValueError:
                continue  # another model's template: nothing was recorded under it
            text = messages[answer.position].content or ""
            self._renderer.prompts.record(prompt, text, array("i", answer.token_ids or b""))

    def _note(self, session_id: str, num_messages: int) -> None:
        self._num_replayed[session_id] = num_messages
        self._num_replayed.move_to_end(session_id)
        while len(self._num_replayed) > _MAX_SESSIONS:
            self._num_replayed.popitem(last=False)
