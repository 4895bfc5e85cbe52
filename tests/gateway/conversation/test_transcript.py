"""A prompt's ids are the model's own where it wrote the text, and the tokenizer's everywhere else."""

from collections.abc import Sequence
from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.renderer import Renderer
from gateway.conversation.runs import Rendering
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.transcript import Transcripts
from tests.gateway.conversation.test_detokenizer import byte_ids

START, END = 1, 2
MODEL = b"model"
QUESTION = Rendering((START, "user\nhi", END, "\n", START, "assistant\n"), MODEL)


class Counting(ByteBPE):
    """Notes what it is asked to encode."""

    def __init__(self, tokenizer: ByteBPE) -> None:
        vars(self).update(vars(tokenizer))
        self.asked: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.asked.append(text)
        return super().encode(text)


def remembering(tokenizer: ByteBPE, max_bytes: int = 1 << 20) -> Transcripts:
    return Transcripts(tokenizer, max_bytes=max_bytes)


def after(answer: str, *more: int | str) -> Rendering:
    """The rendering of the next turn, in which the answer stands as client's text."""
    return Rendering((*QUESTION.units[:-1], f"assistant\n{answer}", *more), MODEL)


def tokenized(tokenizer: ByteBPE, rendering: Rendering) -> list[int]:
    """What template and tokenizer alone would give."""
    parts: list[Sequence[int]] = [[u] if isinstance(u, int) else tokenizer.encode(u) for u in rendering.units]
    return [token_id for part in parts for token_id in part]


def test_a_first_prompt_is_what_template_and_tokenizer_give(tiny: ByteBPE) -> None:
    assert list(remembering(tiny).encode("t", QUESTION)) == tokenized(tiny, QUESTION)


def test_the_next_turn_begins_with_the_very_ids_of_this_one(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    prompt = transcripts.encode("t", QUESTION)
    drawn = byte_ids(tiny, b"hello")

    assert drawn != tiny.encode("hello")
    assert transcripts.record("t", QUESTION, text="hello", ids=drawn)

    following = transcripts.encode("t", after("hello", END, "\n", START, "user\nmore", END))
    assert list(following[: len(prompt) + len(drawn) + 1]) == [*prompt, *drawn, END]


def test_drawn_ids_are_used_only_where_a_special_token_ends_the_text(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    transcripts.record("t", QUESTION, text="hello", ids=byte_ids(tiny, b"hello"))

    for rendering in (after("hello"), after("hello there", END), after("hell", END)):
        assert list(transcripts.encode("t", rendering)) == tokenized(tiny, rendering)


def test_another_tenant_model_or_past_has_its_own_ids(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    transcripts.record("t", QUESTION, text="hello", ids=byte_ids(tiny, b"hello"))

    same = after("hello", END)
    other_past = Rendering((START, "user\nho", *same.units[2:]), MODEL)
    other_model = Rendering(same.units, b"other")
    assert list(transcripts.encode("u", same)) == tokenized(tiny, same)
    assert list(transcripts.encode("t", other_past)) == tokenized(tiny, other_past)
    assert list(transcripts.encode("t", other_model)) == tokenized(tiny, other_model)


def test_units_are_told_apart_from_text_that_looks_like_them(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    split = Rendering((START, "a", START, "b"), MODEL)
    glued = Rendering((START, "a\x01b"), MODEL)

    assert list(transcripts.encode("t", split)) == tokenized(tiny, split)
    assert list(transcripts.encode("t", glued)) == tokenized(tiny, glued)


def test_an_answer_whose_ids_say_something_else_is_not_kept(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    ids = tiny.encode("hello")
    pizza = byte_ids(tiny, "🍕".encode())

    assert not transcripts.record("t", QUESTION, text="hell", ids=ids)  # a stop string cut it
    assert not transcripts.record(
        "t", QUESTION, text="x", ids=[*tiny.encode("x"), *pizza[:2]]
    )  # in a character
    assert not transcripts.record("t", QUESTION, text="hello", ids=[*ids, END])
    assert not transcripts.record("t", QUESTION, text="", ids=[])
    assert list(transcripts.encode("t", after("hello", END))) == tokenized(tiny, after("hello", END))


def test_an_answer_may_hold_added_words(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    drawn = [tiny.special_tokens["<think>"], *tiny.encode("hm")]

    assert transcripts.record("t", QUESTION, text="<think>hm", ids=drawn)
    assert list(transcripts.encode("t", after("<think>hm", END)))[-len(drawn) - 1 :] == [*drawn, END]


def test_a_continued_answer_is_kept_as_a_whole(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    begun = after("hel")
    prompt = transcripts.encode("t", begun)
    transcripts.record("t", begun, text="lo", ids=byte_ids(tiny, b"lo"))

    assert list(transcripts.encode("t", after("hello", END))) == [*prompt, *byte_ids(tiny, b"lo"), END]


def test_an_answer_right_after_a_special_token_is_kept_too(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    transcripts.record("t", Rendering((START, "q", END), MODEL), text="hello", ids=byte_ids(tiny, b"hello"))

    following = transcripts.encode("t", Rendering((START, "q", END, "hello", START), MODEL))
    assert list(following)[-6:] == [*byte_ids(tiny, b"hello"), START]


def test_only_what_is_new_is_tokenized(tiny: ByteBPE) -> None:
    counting = Counting(tiny)
    transcripts = remembering(counting)
    transcripts.encode("t", QUESTION)
    transcripts.record("t", QUESTION, text="hello", ids=counting.encode("hello"))
    counting.asked.clear()

    transcripts.encode("t", after("hello", END, "\n", START, "user\nmore", END, "\n", START, "assistant\n"))

    assert counting.asked == ["\n", "user\nmore", "\n", "assistant\n"]


def test_the_memory_is_bounded_and_forgets_the_oldest(tiny: ByteBPE) -> None:
    counting = Counting(tiny)
    transcripts = remembering(counting, max_bytes=3000)
    for turn in range(100):
        transcripts.encode("t", Rendering((START, f"user {turn}", END), MODEL))
        transcripts.encode("t", Rendering((START, "often", END), MODEL))
        assert 0 < transcripts.num_bytes <= 3000

    assert counting.asked.count("often") == 1
    assert transcripts.encode("t", Rendering((START, "user 0", END), MODEL))
    assert counting.asked.count("user 0") == 2


def test_what_is_said_again_takes_no_more_room(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    transcripts.record("t", QUESTION, text="hello", ids=tiny.encode("hello"))
    once = transcripts.num_bytes

    transcripts.record("t", QUESTION, text="hello", ids=tiny.encode("hello"))

    assert transcripts.num_bytes == once


def test_what_is_larger_than_the_memory_is_encoded_all_the_same(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny, max_bytes=0)

    assert list(transcripts.encode("t", QUESTION)) == tokenized(tiny, QUESTION)
    assert transcripts.num_bytes == 0


@given(st.lists(st.tuples(st.text(), st.text(min_size=1), st.integers(1, 5)), min_size=1, max_size=4))
@settings(deadline=None)
def test_every_turn_begins_with_all_that_was_read_and_written(
    tiny: ByteBPE, turns: list[tuple[str, str, int]]
) -> None:
    transcripts = remembering(tiny)
    renderer = Renderer(ChatTemplate(CHATML), tiny)
    messages: list[dict[str, str]] = []
    past: list[int] = []
    for question, answer, width in turns:
        messages.append({"role": "user", "content": question})
        rendering = renderer.render(messages, now=datetime(2026, 3, 1))
        prompt = list(transcripts.encode("t", rendering))
        # the model's own way to write the answer: in pieces that its tokenizer would not choose
        drawn = [i for at in range(0, len(answer), width) for i in tiny.encode(answer[at : at + width])]
        transcripts.record("t", rendering, text=answer, ids=drawn)

        assert prompt[: len(past)] == past
        past = [*prompt, *drawn, END]
        messages.append({"role": "assistant", "content": answer})


def test_special_tokens_that_were_drawn_as_text_stand_between_the_very_ids(tiny: ByteBPE) -> None:
    transcripts = remembering(tiny)
    opening, closing = (tiny.special_tokens[mark] for mark in ("<think>", "</think>"))
    drawn = [opening, *byte_ids(tiny, b"hello"), closing, *byte_ids(tiny, b"there")]
    prompt = transcripts.encode("t", QUESTION)

    assert transcripts.record("t", QUESTION, text="<think>hello</think>there", ids=drawn)

    answer = ("assistant\n", opening, "hello", closing, "there", END, "\n")
    following = transcripts.encode("t", Rendering((*QUESTION.units[:-1], *answer), MODEL))
    assert list(following)[: len(prompt) + len(drawn)] == [*prompt, *drawn]
