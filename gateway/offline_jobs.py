"""What a script wants answered, as ids: text, ids, or conversations."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway.choice import ToldToken
from gateway.conversation.prompt import Prompt, Prompts

__all__ = ["Job", "JobMaker", "Message", "PromptInput"]

PromptInput = str | Mapping[str, Any]  # text; {"prompt": text}; or {"prompt_token_ids": ids}
Message = Mapping[str, Any]

_FORMS = 'a prompt is a string, {"prompt": ...} or {"prompt_token_ids": [...]}'


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One prompt, and what has been told of its answers."""

    ids: "array[int]"  # typecode "i"
    text: str | None  # None where ids were given
    chat: Prompt | None = None  # of a conversation
    told: dict[int, list[ToldToken]] = field(default_factory=dict)  # by choice


class JobMaker:
    """Makes jobs for one model. What cannot be one raises ValueError."""

    def __init__(self, prompts: Prompts, *, vocab_size: int, max_request_tokens: int) -> None:
        self._prompts = prompts
        self._vocab_size = vocab_size
        self._max_request_tokens = max_request_tokens

    def of_prompts(self, prompts: PromptInput | Sequence[PromptInput]) -> list[Job]:
        """One for each prompt."""
        listed = [prompts] if isinstance(prompts, str | Mapping) else prompts
        if not isinstance(listed, Sequence):
            raise ValueError(_FORMS)
        return [self._of_prompt(each) for each in listed]

    def of_conversations(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> list[Job]:
        """One for each conversation, in the model's chat template."""
        jobs = []
        for conversation in _conversations(messages):
            prompt = self._prompts.render(
                conversation,
                tenant="",
                now=datetime.now(),
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
            )
            spell, units = self._prompts.spelling.text_of, prompt.rendering.units
            text = "".join([each if isinstance(each, str) else spell(each) for each in units])
            jobs.append(Job(ids=prompt.ids, text=text, chat=prompt))
        return jobs

    def num_left(self, job: Job) -> int:
        """The most tokens that an answer may have: one at least."""
        left = self._max_request_tokens - len(job.ids)
        if left < 1:
            raise ValueError(
                f"a prompt has {len(job.ids):,} tokens; beside an answer {self._max_request_tokens - 1:,} fit"
            )
        return left

    def _of_prompt(self, prompt: PromptInput) -> Job:
        if not isinstance(prompt, str | Mapping):
            raise ValueError(_FORMS)
        given: Mapping[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else prompt
        ids, text = given.get("prompt_token_ids"), given.get("prompt")
        if ids is not None:
            if not isinstance(ids, Sequence) or not all(
                type(each) is int and 0 <= each < self._vocab_size for each in ids
            ):
                raise ValueError(f"prompt_token_ids are 0 to {self._vocab_size - 1:,}")
            job = Job(ids=array("i", ids), text=None)
        elif isinstance(text, str):
            job = Job(ids=self._prompts.encode(text) if text else array("i"), text=text)
        else:
            raise ValueError(_FORMS)
        if not job.ids:
            raise ValueError("a prompt is empty")
        return job


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[list[Message]]:
    is_one = bool(messages) and isinstance(messages[0], Mapping)
    listed: Sequence[Any] = [messages] if is_one else messages
    for each in listed:
        is_list = isinstance(each, Sequence) and not isinstance(each, str)
        if not is_list or not each or not all(map(_is_message, each)):
            raise ValueError(
                "a conversation is a sequence of messages, and has one at least; each is a mapping with "
                "a role and a content, which is text or a list of parts of text"
            )
    return [list(each) for each in listed]


def _is_message(message: object) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and _is_content(message.get("content"))
    )


def _is_content(content: object) -> bool:
    """Text, none, or parts of text as the protocol has them."""
    if not isinstance(content, list):
        return content is None or isinstance(content, str)
    return all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content)
