"""A special token in a rendering is one that the template wrote, whatever clients write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.runs import Guard, Rendering, SpecialTokens, TooManyPrivateCharacters

IDS = {"<|im_start|>": 1, "<|im_end|>": 2, "<|im": 3, "<s>": 4, "[A]": 5, "<a<": 6, "<b>": 7}
SPECIAL = SpecialTokens(IDS)
PRIVATE = [*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]

# parts that make special tokens when they come together, and stand-ins that a guard might choose
clients_text = st.lists(
    st.sampled_from(
        [
            "<",
            "|",
            "im_",
            "im",
            "end",
            "start",
            "|>",
            ">",
            "s",
            "[",
            "A",
            "]",
            " ",
            "a",
            "b",
            "\ue000",
            "\ue001",
        ]
    )
).map("".join)


def plain(units: tuple[int | str, ...]) -> str:
    return "".join(unit for unit in units if isinstance(unit, str))


def ids(units: tuple[int | str, ...]) -> list[int]:
    return [unit for unit in units if isinstance(unit, int)]


@given(clients_text, clients_text)
def test_clients_text_yields_no_special_token_even_at_its_edges(a: str, b: str) -> None:
    guard = Guard(SPECIAL, texts=[a, b])
    hidden_a, hidden_b = guard.hide([a, b])

    # the template writes parts of special tokens right beside what clients wrote
    rendered = f"<|im_start|>{hidden_a}<|im_end|>{hidden_b}<s>[{hidden_a}]<{hidden_b.strip()}>"

    units = guard.split(rendered, written=SPECIAL)
    assert ids(units) == [1, 2, 4]
    assert plain(units) == f"{a}{b}[{a}]<{b.strip()}>"


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [("", "x <s", ">"), ("<", "s> x", ""), ("[", "A", "]"), ("", "x [A \n", "]"), ("[", " A] x", "")],
)
def test_a_part_of_a_token_is_not_completed_by_the_template(before: str, text: str, after: str) -> None:
    guard = Guard(SPECIAL, texts=[])

    assert ids(guard.split(before + guard.hide(text).strip() + after, written=SPECIAL)) == []


def test_tokens_that_overlap_are_all_hidden() -> None:
    guard = Guard(SPECIAL, texts=[])

    assert guard.split("x" + guard.hide("<a<b>"), written=SPECIAL) == ("x<a<b>",)


@given(clients_text)
def test_what_was_hidden_comes_back_as_it_was(text: str) -> None:
    guard = Guard(SPECIAL, texts=[text])

    assert plain(guard.split(guard.hide(text), written=SPECIAL)) == text


def test_the_longest_of_overlapping_tokens_is_meant() -> None:
    guard = Guard(SPECIAL, texts=[])

    assert guard.split("<|im_end|><|im x", written=SPECIAL) == (2, 3, " x")


def test_strings_are_hidden_at_any_depth_keys_too() -> None:
    data = {"<s>": ["[A]", {"k": "<|im_end|>"}], "n": 1, "none": None}
    hidden = Guard(SPECIAL, texts=["<s>[A]k<|im_end|>n"], spoken=frozenset({"n", "none"})).hide(data)

    assert not any(spelling in repr(hidden) for spelling in IDS)
    assert hidden["n"] == 1
    assert hidden["none"] is None


def test_words_that_the_template_speaks_are_left_alone() -> None:
    assert Guard(SPECIAL, texts=["s", "im_end"], spoken=frozenset({"im_end"})).hide(["im_end", "s"]) == [
        "im_end",
        "\ue000",
    ]


def test_harmless_text_is_not_changed() -> None:
    assert Guard(SPECIAL, texts=[]).hide("1 < 2 and [B] or </s> ") == "1 < 2 and [B] or </s> "


def test_a_request_that_uses_up_all_private_characters_is_refused() -> None:
    everything = "".join(map(chr, PRIVATE))

    with pytest.raises(TooManyPrivateCharacters):
        Guard(SPECIAL, texts=[everything]).hide("<s>")
    assert Guard(SPECIAL, texts=[everything[1:]]).hide("<s>") == everything[0] + "s>"


def test_no_special_tokens_at_all_is_plain_text() -> None:
    nothing = SpecialTokens({})

    assert Guard(nothing, texts=[]).split("<s>", written=nothing) == ("<s>",)


def test_the_open_stretch_is_what_follows_the_last_special_token() -> None:
    assert Rendering((1, "user\nhi", 2, "\n", 1, "assistant\n")).open_stretch == "assistant\n"
    assert Rendering(("a", 2)).open_stretch == ""
    assert Rendering(("a", 2)).closed_units == ("a", 2)
    assert Rendering(()).closed_units == ()
