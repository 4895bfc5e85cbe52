"""Answers of a stored conversation get the ids that were drawn, in one rendering or one each."""

from array import array
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from gateway.conversation.answers import Answer, Opening, answers_in
from gateway.conversation.prompt import Prompts
from gateway.conversation.renderer import Renderer
from gateway.conversation.runs import Rendering
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from tests.fakes import ByteTokenizer

NOW = datetime(2026, 3, 1)
START, END = 256, 257
OPENING = Opening(START, "assistant\n")
# every message is told alike: only what stands before an answer says whose it is
ROLELESS = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' if message.role == 'user' else '<|im_end|>' }}{{ message.content }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_end|>{% endif %}"
)


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def prompts_of(tokenizer: ByteTokenizer, template: str = CHATML, transcript_bytes: int = 1 << 20) -> Prompts:
    return Prompts(TextModel(tokenizer, ChatTemplate(template), (END,)), transcript_bytes=transcript_bytes)


def ids_of(
    prompts: Prompts, messages: Sequence[dict[str, Any]], drawn: dict[int, bytes] | None = None
) -> list[int]:
    return prompts.render(messages, tenant="t", now=NOW, drawn=drawn).ids.tolist()


def conversation(tokenizer: ByteTokenizer, num_turns: int) -> tuple[list[dict[str, Any]], dict[int, bytes]]:
    """Turns whose answers were drawn as one token each."""
    messages = [
        message
        for turn in range(num_turns)
        for message in (said("user", f"q{turn}"), said("assistant", f"answer {turn}"))
    ]
    drawn = {2 * turn + 1: packed([tokenizer.id_of(f"answer {turn}")]) for turn in range(num_turns)}
    return [*messages, said("user", "more")], drawn


@pytest.mark.parametrize("template", [CHATML, ROLELESS])
@pytest.mark.parametrize("transcript_bytes", [1 << 20, 1])
def test_the_ids_are_those_of_a_conversation_that_was_just_held(template: str, transcript_bytes: int) -> None:
    tokenizer = ByteTokenizer()
    messages, drawn = conversation(tokenizer, 5)
    living = prompts_of(tokenizer, template)
    for place, ids in drawn.items():
        prompt = living.render(messages[:place], tenant="t", now=NOW)
        assert living.record(prompt, messages[place]["content"], array("i", ids))

    recalled = ids_of(prompts_of(tokenizer, template, transcript_bytes), messages, drawn)

    assert recalled == ids_of(living, messages)
    assert all(tokenizer.id_of(f"answer {turn}") in recalled for turn in range(5))


def test_however_many_answers_there_are_it_is_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ByteTokenizer()
    messages, drawn = conversation(tokenizer, 100)
    prompts = prompts_of(tokenizer)
    num_renderings = count_renderings(monkeypatch)

    ids_of(prompts, messages, drawn)

    assert len(num_renderings) == 1


def count_renderings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    render = Renderer.render

    def counting(self: Renderer, messages: Any, **how: Any) -> Rendering:
        counted.append(len(messages))
        return render(self, messages, **how)

    monkeypatch.setattr(Renderer, "render", counting)
    return counted


def test_drawn_ids_win_over_what_the_tokenizer_said_before() -> None:
    tokenizer = ByteTokenizer()
    messages, drawn = conversation(tokenizer, 1)
    prompts = prompts_of(tokenizer)
    ids_of(prompts, messages)

    recalled = ids_of(prompts, messages, drawn)

    assert tokenizer.id_of("answer 0") in recalled
    assert ids_of(prompts, messages) == recalled


def test_ids_that_do_not_stand_for_their_text_are_not_used() -> None:
    tokenizer = ByteTokenizer()
    messages, _ = conversation(tokenizer, 1)
    tokenized = ids_of(prompts_of(tokenizer), messages)

    for ids in ([tokenizer.id_of("answer 0 STOP")], [END], []):
        assert ids_of(prompts_of(tokenizer), messages, {1: packed(ids)}) == tokenized


def test_a_clients_message_that_reads_like_an_answer_gets_no_ids_of_it() -> None:
    rendering = Rendering(
        (
            START,
            "user\nyes",
            END,
            "\n",
            START,
            "assistant\nyes",
            END,
            "\n",
            START,
            "assistant\nyes",
            END,
            "\n",
        )
    )
    messages = [said("user", "yes"), said("assistant", "yes"), said("assistant", "yes")]

    found = answers_in(rendering, messages, {2: ("yes", b"1234")}, OPENING)

    assert found == {9: Answer("assistant\n", "yes", b"1234")}


def test_what_the_template_changed_is_left_out() -> None:
    rendering = Rendering((START, "assistant\nyes", END, "\n"))

    assert answers_in(rendering, [said("assistant", " yes ")], {0: (" yes ", b"1234")}, OPENING) == {}


def test_where_the_stretches_are_not_those_of_the_answers_nothing_is_told() -> None:
    rendering = Rendering((START, "user\nyes", END, "\n", START, "assistant\nyes"))

    # the open stretch at the end may be continued, so it is no answer's
    assert answers_in(rendering, [said("assistant", "yes")], {0: ("yes", b"1234")}, OPENING) is None


def test_one_by_one_it_ends_where_the_answers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ByteTokenizer()
    messages, drawn = conversation(tokenizer, 100)
    # this template drops empty answers, so stretches and answers do not match
    messages = [said("assistant", ""), *messages]
    drawn = {place + 1: ids for place, ids in drawn.items()}
    prompts = prompts_of(
        tokenizer,
        "{% for message in messages if message.content %}"
        "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    )
    counted = count_renderings(monkeypatch)

    first = ids_of(prompts, messages, drawn)
    num_first = len(counted)
    again = ids_of(prompts, messages, drawn)

    assert num_first == 1 + 64
    assert len(counted) == num_first + 2
    assert first == again
    assert [tokenizer.id_of(f"answer {turn}") in first for turn in (99, 36, 35)] == [True, True, False]
