"""Expressions, choices and grammars of clients: what they allow, and how they are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from gateway.errors import InvalidRequest
from gateway.grammars import choice_part, lark_part, literal, regex_part, whole
from tests.gateway.test_schemas import TOKENIZER


def allows(part: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, whole(part))
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("regex", "matched", "not_matched"),
    [
        ("[0-9]+-[a-z]", "12-a", "12-"),
        ("a/b", "a/b", "a"),
        (r"a\/b[/]", "a/b/", "a/b"),
        ("a\nb", "a\nb", "ab"),
        ('"é"', '"é"', "é"),
        ("^ab$", "ab", "abc"),
    ],
)
def test_an_expression_matches_from_beginning_to_end(regex: str, matched: str, not_matched: str) -> None:
    part = regex_part(regex, path="regex")

    assert allows(part, matched)
    assert not allows(part, not_matched)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), min_size=1, max_size=4
    )
)
def test_a_choice_allows_its_texts_and_nothing_else(texts: list[str]) -> None:
    part = choice_part(texts, path="choice")

    assert all(allows(part, text) for text in texts)
    assert not allows(part, max(texts, key=len) + "?") or max(texts, key=len) + "?" in texts
    assert allows(literal(texts[0]), texts[0])


@pytest.mark.parametrize("grammar", ['start: "a" | b\nb: "b" c*\nc: "c"', 'root ::= "a" | "b" [c]*'])
def test_a_grammar_may_be_larks_or_gbnf(grammar: str) -> None:
    part = lark_part(grammar, path="grammar")

    assert allows(part, "a")
    assert allows(part, "bcc")
    assert not allows(part, "c")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (regex_part, "("),
        (regex_part, "(?<=a)b"),
        (regex_part, "x" * 100_001),
        (lark_part, "start: ("),
        (lark_part, ""),
        (lark_part, "root ::= ("),
        (lark_part, '%llguidance {"no_forcing": false}\nstart: "a"'),
        (lark_part, "{" * 5_000),
        (lark_part, 'start: %json {"type": "integer", "minimum": -9223372036854775808}'),
        (lark_part, 'start: %lark {\nstart: "a"\n}'),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidRequest) as found:
        make(text, path="here")

    assert found.value.param == "here"
    assert len(found.value.message) < 500


@pytest.mark.parametrize("texts", [[], [""], ["a"] * 901, ["x" * 100_001]])
def test_choices_are_few_and_say_something(texts: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        choice_part(texts, path="choice")
