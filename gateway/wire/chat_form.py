"""Answers of chat in the protocol's shapes, whole and as the chunks of a stream in the order that it wants.

For each choice: one chunk with the role and empty content, then reasoning, content and calls, then one empty
delta with the reason why it ended. Content never rides on the last one, and no delta of content is empty.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET

from gateway.choice import CallPiece, Choice, Piece, ToldToken
from gateway.conversation.spelling import Spelling
from gateway.wire.cache_answers import NOTHING, CacheTold
from gateway.wire.chat_response import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatMessage,
    ChunkChoice,
    Delta,
    ToolCall,
    ToolCallDelta,
)
from gateway.wire.form import Head, Told
from gateway.wire.logprobs import ChoiceLogprobs, chat_logprobs
from gateway.wire.usage import Usage

__all__ = ["ChatForm", "answer_message"]


class ChatForm:
    """Writes one answer; remembers which choices of its stream have begun. Implements wire.form.Form."""

    def __init__(self, head: Head, spelling: Spelling, *, num_top: int | None, with_usage: bool) -> None:
        """`num_top` is None when nobody asked for log-probabilities."""
        self._head = head
        self._spelling = spelling
        self._num_top = num_top
        self._with_usage = with_usage
        self._begun: set[int] = set()

    def chunks(self, piece: Piece, cache: CacheTold = NOTHING) -> Iterator[ChatChunk]:
        """See Form."""
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            yield self._chunk(ChunkChoice(index=piece.index, delta=Delta(role="assistant", content="")))
        untold = self._logprobs(piece.logprobs) if piece.logprobs else None
        for delta in _deltas(piece):
            yield self._chunk(ChunkChoice(index=piece.index, delta=delta, logprobs=untold))
            untold = None
        if piece.finish_reason is not None:
            yield self._chunk(
                ChunkChoice(
                    index=piece.index, delta=Delta(), logprobs=untold, finish_reason=piece.finish_reason
                ),
                cache=cache,
            )

    def usage_chunk(self, usage: Usage, cache: CacheTold = NOTHING) -> ChatChunk:
        """See Form."""
        return self._chunk(None, usage, cache)

    def whole(self, told: Sequence[Told], usage: Usage, cache: CacheTold = NOTHING) -> ChatCompletion:
        """See Form."""
        prompt_logprobs = told[0].prompt_logprobs
        return ChatCompletion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(each) for each in told],
            usage=usage,
            system_fingerprint=self._head.system_fingerprint,
            prompt_logprobs=UNSET if prompt_logprobs is None else prompt_logprobs,
            cache=cache.explanation,
            prompt_cache_diagnostics=cache.diagnostics,
        )

    def _choice(self, told: Told) -> ChatChoice:
        calls = _whole_calls(told.calls)
        message = ChatMessage(
            told.text or (None if calls else ""),
            tool_calls=calls or UNSET,
            reasoning_content=told.reasoning or UNSET,
            reasoning=told.reasoning or UNSET,
        )
        return ChatChoice(
            index=told.index,
            message=message,
            logprobs=self._logprobs(told.tokens),
            finish_reason=told.end,
        )

    def _chunk(
        self,
        choice: ChunkChoice | None,
        usage: Usage | None = None,
        cache: CacheTold = NOTHING,
    ) -> ChatChunk:
        return ChatChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.system_fingerprint,
            choices=[] if choice is None else [choice],
            usage=usage if self._with_usage else UNSET,
            cache=cache.explanation,
            prompt_cache_diagnostics=cache.diagnostics,
        )

    def _logprobs(self, tokens: Sequence[ToldToken]) -> ChoiceLogprobs | None:
        return None if self._num_top is None else chat_logprobs(self._spelling, tokens, self._num_top)


def answer_message(choice: Choice) -> dict[str, Any]:
    """A finished answer as a message of its conversation, as a client would send it back."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if choice.calls else "")}
    if choice.calls:
        message["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in choice.calls
        ]
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    return message


def _deltas(piece: Piece) -> Iterator[Delta]:
    if piece.reasoning:
        yield Delta(reasoning_content=piece.reasoning, reasoning=piece.reasoning)
    if piece.text:
        yield Delta(content=piece.text)
    for call in piece.calls:
        yield Delta(tool_calls=[_call_delta(call)])


def _call_delta(call: CallPiece) -> ToolCallDelta:
    if call.begins is None:
        return ToolCallDelta(index=call.place, function=CalledFunction(arguments=call.arguments))
    return ToolCallDelta(
        index=call.place,
        id=call.begins.id,
        type="function",
        function=CalledFunction(name=call.begins.name, arguments=call.arguments),
    )


def _whole_calls(pieces: Sequence[CallPiece]) -> list[ToolCall]:
    calls = [piece.begins for piece in pieces if piece.begins is not None]
    return [
        ToolCall(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments))
        for call in calls
    ]
