"""The exact ids that stand for a conversation so far, remembered by what was rendered.

It owns a bounded memory from typed runs to ids, each entry under the chain of everything before it. An
answer's ids are those that the model drew, not those that its text would become. Invariant: the ids of a
stretch decode to its text, and drawn ids are used only where a special token ends the stretch, so nothing
after them could have merged with them.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from threading import Lock

from gateway.conversation.answers import Answer
from gateway.conversation.runs import Rendering
from gateway.conversation.tokenizer import Tokenizer

__all__ = ["Transcripts"]

_ENTRY_OVERHEAD = 256  # bytes of Python objects that an entry costs beside its ids


class Transcripts:
    """A memory of the least recently used kind, for all tenants. May be called from several threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(tokenizer.special_tokens.values())
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()  # key -> packed int32 ids
        self._num_bytes = 0
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        """What the memory holds now, overhead included."""
        return self._num_bytes

    def encode(
        self, tenant: str, rendering: Rendering, answers: Mapping[int, Answer] | None = None
    ) -> "array[int]":
        """The ids of a prompt: remembered where they are known, else tokenized, and remembered.

        `answers` are known from elsewhere, by their places among the units; their ids win over what is
        remembered, where they stand for their text.
        """
        ids = array("i")
        chain = _Chain(tenant, rendering.model)
        last = len(rendering.units) - 1
        for place, unit in enumerate(rendering.units):
            if isinstance(unit, int):
                chain.extend(unit, closed=place < last)
                ids.append(unit)
                continue
            before = chain.copy()
            key = chain.extend(unit, closed=place < last)
            answer = answers.get(place) if answers and place < last else None
            known = None if answer is None else self._answered(before, key, answer)
            ids.frombytes(self._ids(key, unit) if known is None else known)
        return ids

    def knows(self, tenant: str, rendering: Rendering, text: str) -> bool:
        """Whether the ids of this prompt's answer are remembered."""
        chain = _Chain(tenant, rendering.model)
        for unit in rendering.closed_units:
            chain.extend(unit, closed=True)
        return self._get(chain.extend(rendering.open_stretch + text, closed=True)) is not None

    def record(self, tenant: str, rendering: Rendering, *, text: str, ids: Sequence[int]) -> bool:
        """Remember that the model continued this prompt by `ids`, which the client was sent as `text`.

        Answers whether it was worth remembering: not if the ids decode to anything else (a stop string or a
        limit cut the text) or hold a control token, which a client's text never becomes.
        """
        drawn = array("i", ids)
        if not self._stands_for(drawn, text):
            return False
        chain = _Chain(tenant, rendering.model)
        for unit in rendering.closed_units:
            chain.extend(unit, closed=True)
        begun = rendering.open_stretch
        before = self._begun(chain, begun)
        self._put_runs(chain.copy(), begun, before, drawn)
        self._put(chain.extend(begun + text, closed=True), before + drawn.tobytes())
        return True

    def _put_runs(self, chain: "_Chain", begun: str, before: bytes, drawn: "array[int]") -> None:
        """Remember an answer in the runs that it becomes where the template writes its special tokens, such
        as those around a call, which the model drew as text.
        """
        special = self._special_ids
        if special.isdisjoint(drawn):
            return
        text, ids = begun.encode(), before
        for token_id in (*drawn, None):
            if token_id is not None and token_id not in special:
                text += self._tokenizer.decode_bytes(token_id)
                ids += array("i", [token_id]).tobytes()
                continue
            if text:
                # a special token begins with a whole character, so each run is text as all of them are
                self._put(chain.extend(text.decode(), closed=True), ids)
            text, ids = b"", b""
            if token_id is not None:
                chain.extend(token_id, closed=True)

    def _answered(self, chain: "_Chain", key: bytes, answer: Answer) -> bytes | None:
        """The ids of a closed stretch that an answer ends; None if the drawn ones are not its text's.

        `chain` is of what comes before the stretch.
        """
        known = self._get(key)
        if known is not None and known.endswith(answer.ids):
            return known
        if not self._stands_for(array("i", answer.ids), answer.text):
            return None
        ids = self._begun(chain, answer.begun) + answer.ids
        self._put(key, ids)
        return ids

    def _begun(self, chain: "_Chain", begun: str) -> bytes:
        """The ids of what the template wrote before an answer; `chain` is of what comes before that."""
        return self._ids(chain.copy().extend(begun, closed=False), begun) if begun else b""

    def _stands_for(self, ids: Sequence[int], text: str) -> bool:
        if not text or not self._tokenizer.control_ids.isdisjoint(ids):
            return False
        return b"".join([self._tokenizer.decode_bytes(token_id) for token_id in ids]) == text.encode()

    def _ids(self, key: bytes, stretch: str) -> bytes:
        known = self._get(key)
        if known is not None:
            return known
        ids = array("i", self._tokenizer.encode(stretch)).tobytes()
        self._put(key, ids)
        return ids

    def _get(self, key: bytes) -> bytes | None:
        with self._lock:
            ids = self._entries.get(key)
            if ids is not None:
                self._entries.move_to_end(key)
            return ids

    def _put(self, key: bytes, ids: bytes) -> None:
        with self._lock:
            self._num_bytes -= _cost(self._entries.pop(key, None))
            self._entries[key] = ids
            self._num_bytes += _cost(ids)
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= _cost(self._entries.popitem(last=False)[1])


class _Chain:
    """The running digest of tenant, model and units. `extend` answers the key of the unit that it adds."""

    def __init__(self, tenant: str, model: bytes) -> None:
        self._state = blake2b(digest_size=24)
        self._add(b"tenant", tenant.encode())
        self._add(b"model", model)

    def copy(self) -> "_Chain":
        twin = object.__new__(_Chain)
        twin._state = self._state.copy()
        return twin

    def extend(self, unit: int | str, *, closed: bool) -> bytes:
        if isinstance(unit, int):
            self._add(b"special", unit.to_bytes(4, "little"))
        else:
            self._add(b"stretch", unit.encode())
        end = self._state.copy()
        end.update(b"closed" if closed else b"open")
        return end.digest()

    def _add(self, kind: bytes, data: bytes) -> None:
        # The length stands before the data, so that no two sequences of units feed the digest the same bytes.
        self._state.update(b"%b %d " % (kind, len(data)))
        self._state.update(data)


def _cost(ids: bytes | None) -> int:
    return 0 if ids is None else len(ids) + _ENTRY_OVERHEAD
