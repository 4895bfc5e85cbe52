"""The ranges of a chat request's own fields, and what its fields demand of each other."""

from engine.sequence import MAX_TOP_LOGPROBS
from gateway.errors import InvalidRequest
from gateway.wire.chat_request import ChatRequest
from gateway.wire.limits import MAX_MESSAGES, Range, at_most, check_common, check_ranges

__all__ = ["CHAT_RANGES", "check_chat"]

_INT64 = 1 << 63
_INT31 = 1 << 31
CHAT_RANGES = {
    "max_tokens": Range(1, _INT64 - 1),
    "max_completion_tokens": Range(1, _INT64 - 1),
    "top_logprobs": Range(0, MAX_TOP_LOGPROBS),
    "thinking_token_budget": Range(0, _INT31 - 1),
}


def check_chat(chat: ChatRequest) -> None:
    """Raise InvalidRequest for the first field out of range."""
    check_ranges(chat, CHAT_RANGES)
    check_common(chat)
    if not chat.messages:
        raise InvalidRequest("messages is empty; send at least one message.", param="messages")
    at_most(len(chat.messages), MAX_MESSAGES, "messages", "messages")
    _check_pairs(chat)
    _check_session(chat)


def _check_pairs(chat: ChatRequest) -> None:
    """Fields that make sense only beside others."""
    if chat.top_logprobs is not None and not chat.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    if chat.continue_final_message and chat.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message continues the last message and add_generation_prompt begins a new one: "
            "send only one of them as true.",
            param="continue_final_message",
        )
    if chat.continue_final_message and chat.messages[-1].role != "assistant":
        raise InvalidRequest(
            "continue_final_message needs an assistant's message at the end.", param="continue_final_message"
        )


def _check_session(chat: ChatRequest) -> None:
    """A session is one conversation, continued by one answer that is kept."""
    if chat.session_id is None:
        return
    if chat.num_choices != 1:
        raise InvalidRequest("n must be 1 with session_id; fork the session for other answers.", param="n")
    if chat.cache_hints.is_side:
        raise InvalidRequest(
            "cache: read-only keeps nothing, and a session keeps its turns; send one of the two.",
            param="cache",
        )
    if chat.prewarms or chat.cache_options.mode == "explicit":
        name = "prewarm" if chat.prewarms else "mode"
        raise InvalidRequest(
            f"prompt_cache_options.{name} is not served with session_id: a session keeps whole turns.",
            param=f"prompt_cache_options.{name}",
        )
    if chat.cache_salt is not None:
        raise InvalidRequest(
            "cache_salt is chosen when a session is created; leave it out.", param="cache_salt"
        )
    if chat.continue_final_message or chat.add_generation_prompt is False:
        name = "continue_final_message" if chat.continue_final_message else "add_generation_prompt"
        raise InvalidRequest(
            f"{name} is not served with session_id, where every answer is a message of its own.", param=name
        )
