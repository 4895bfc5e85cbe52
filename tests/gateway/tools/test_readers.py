"""Readers of calls and reasoning: what each form becomes however it is cut, and that nothing is lost."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.channels import ChannelReader
from gateway.tools.families import family_of
from gateway.tools.only_calls import OnlyCalls
from gateway.tools.said import TOKEN_SIGN, Reader, Spell
from gateway.tools.thoughts import THOUGHT_MARKS, ThoughtReader

PARAMETERS = {
    "q": {"type": "string"},
    "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "on": {"type": "boolean"},
    "list": {"type": ["array"]},
    "maybe": {"type": ["string", "null"]},
}
NAMES: dict[str, Any] = {"look": {"type": "object", "properties": PARAMETERS}, "go": {}}
LOOK = '{"name": "look", "arguments": {"q": "x}<tool_call>"}}'
HERMES = f"<tool_call>\n{LOOK}\n</tool_call>"
FINAL = "<|channel|>final<|message|>"
LISTED = '[TOOL_CALLS][{"name": "look", "arguments": {"q": 1}}, {"name": "go", "arguments": {}}]'
SOURCES = {
    "hermes": "<tool_call>",
    "default": "",
    "objects": "<|python_tag|>",
    "pythonic": "[func_name1(",
    "mistral": "[TOOL_CALLS]",
    "tagged": "<tool_call><function=",
}


def in_letters(mark: str) -> str:
    return mark


def as_token(mark: str) -> str:
    return TOKEN_SIGN + mark


def reader_of(family: str, spell: Spell = in_letters) -> Reader:
    if family == "channels":
        return ChannelReader(NAMES, spell)
    if family == "thoughts":
        return ThoughtReader(THOUGHT_MARKS[0], reader_of("hermes"), is_inside=False)
    if family == "inside":
        return ThoughtReader(THOUGHT_MARKS[0], None, is_inside=True)
    return family_of(SOURCES[family], {}).reader(NAMES, spell)


def read(reader: Reader, pieces: list[str], *, is_cut: bool = False) -> dict[str, Any]:
    """Everything that is said of an answer."""
    told: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    said = [*[each for piece in pieces for each in reader.push(piece)], *reader.finish(is_cut=is_cut)]
    for kind, text in said:
        if kind == "call":
            told["calls"].append([text, ""])
        elif kind == "arguments":
            told["calls"][-1][1] += text
        else:
            told[kind] += text
    return told


def said(content: str = "", *calls: list[str], reasoning: str = "") -> dict[str, Any]:
    return {"content": content, "reasoning": reasoning, "calls": list(calls)}


def tagged(**arguments: object) -> str:
    told = "".join([f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in arguments.items()])
    return f"<tool_call>\n<function=look>\n{told}</function>\n</tool_call>"


UNKNOWN = '<tool_call>{"name": "no", "arguments": {}}'
HM = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
LOOKED = ["look", '{"q": "x}<tool_call>"}']
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("hermes", "hello ", said("hello ")),
    ("hermes", f"hi \n{HERMES}\n{HERMES}\n", said("hi", LOOKED, LOOKED)),
    ("hermes", f"{HERMES} bye", said(" bye", LOOKED)),
    ("hermes", "<tool_call>bad</tool_call> x", said("<tool_call>bad</tool_call> x")),
    ("hermes", '<tool_call><tool_call>{"name": "go"}', said("<tool_call>", ["go", "{}"])),
    ("hermes", '<tool_call>{"arguments": {"a": [1]}, "name": "look"}', said("", ["look", '{"a": [1]}'])),
    ("hermes", UNKNOWN, said(UNKNOWN)),
    ("hermes", '<tool_call>{"name": "go", "arguments": "{\\"q\\": 1}"}', said("", ["go", '{"q": 1}'])),
    ("hermes", '<tool_call>{"name": "go", "arguments": null}', said("", ["go", "{}"])),
    ("hermes", '<tool_call>{"name": "go", "arguments": {"q": "un', said("", ["go", '{"q": "un'])),
    ("hermes", '<tool_call>{"name": "go", "argu', said("", ["go", ""])),
    ("hermes", '<tool_call>{"na', said('<tool_call>{"na')),
    ("hermes", "a <tool_ca", said("a <tool_ca")),
    ("hermes", "a </tool_call> b", said("a </tool_call> b")),
    ("hermes", LOOK, said(LOOK)),
    ("default", LOOK, said("", LOOKED)),
    ("default", '{"answer": 1}', said('{"answer": 1}')),
    ("objects", '{"name": "go", "parameters": {"q": 1}}; {"name": "go"}',
     said("", ["go", '{"q": 1}'], ["go", "{}"])),
    ("objects", '<|python_tag|>{"name": "go", "parameters": {}}', said("", ["go", "{}"])),
    ("objects", '{"name": "Bob"} x', said('{"name": "Bob"} x')),
    ("pythonic", '[look(q="x)", n=[1, {"a": True}]), go()]',
     said("", ["look", '{"q": "x)", "n": [1, {"a": true}]}'], ["go", "{}"])),
    ("pythonic", "[link](http)", said("[link](http)")),
    ("pythonic", "[look(q=f(1))] b", said("[look(q=f(1))] b")),
    ("pythonic", "[look(q=1", said("[look(q=1")),
    ("mistral", f"hi {LISTED}", said("hi", ["look", '{"q": 1}'], ["go", "{}"])),
    ("mistral", '[TOOL_CALLS]look[CALL_ID]1[ARGS]{"q": "}"}[TOOL_CALLS]go{}',
     said("", ["look", '{"q": "}"}'], ["go", "{}"])),
    ("mistral", "[TOOL_CALLS]none{}", said("[TOOL_CALLS]none{}")),
    ("mistral", '[TOOL_CALLS][{"name": "no"}] x', said('[TOOL_CALLS][{"name": "no"}] x')),
    ("mistral", '[TOOL_CALLS][{"name": "go"}, {"name": "no"}]', said(', {"name": "no"}]', ["go", "{}"])),
    ("tagged", "hi " + tagged(q=" two\nlines", n=3), said("hi", ["look", '{"q": " two\\nlines", "n": 3}'])),
    ("tagged", tagged(on="True", list="[1, NaN]"), said("", ["look", '{"on": true, "list": "[1, NaN]"}'])),
    ("tagged", tagged(maybe="null"), said("", ["look", '{"maybe": null}'])),
    ("tagged", tagged(n="null", other="7"), said("", ["look", '{"n": null, "other": "7"}'])),
    ("tagged", "<tool_call><function=go></function></tool_call>", said("", ["go", "{}"])),
    ("tagged", tagged(q="a") + HERMES, said("", ["look", '{"q": "a"}'], LOOKED)),
    ("tagged", "<tool_call><function=no></function>", said("<tool_call><function=no></function>")),
    ("tagged", "<tool_call>\n<x>", said("<tool_call>\n<x>")),
    ("tagged", tagged(q="a")[:-24] + " x", said("\n x", ["look", '{"q": "a"'])),
    ("tagged", tagged(q="a")[:-38], said("\n<parameter=q>\na", ["look", "{"])),
    ("channels", "plain", said("plain")),
    ("channels", f"{HM}{FINAL}Hi", said("Hi", reasoning="hm")),
    ("channels", '<|channel|>commentary to=functions.go <|constrain|>json<|message|>{"q": 1}<|call|>',
     said("", ["go", '{"q": 1}'])),
    ("channels", "<|channel|>commentary to=functions.no<|message|>{}", said("{}")),
    ("thoughts", f"<think>\nhm </think>\n\nhi {HERMES}", said("hi", LOOKED, reasoning="hm")),
    ("thoughts", "a <think>b</think>", said("a <think>b</think>")),
    ("thoughts", "<think></think>b", said("b")),
    ("thoughts", "<think>a</think>\n</think></think> b </think>", said("b </think>", reasoning="a")),
    ("thoughts", "<think>a</think> </thi", said("</thi", reasoning="a")),
    ("inside", "hm\n</think>\n\nb ", said("b ", reasoning="hm")),
    ("inside", "<think>hm", said(reasoning="hm")),
    ("thoughts", "<think><think><think>", said(reasoning="<think>")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_an_answer_is_read_alike_whole_and_letter_by_letter(
    family: str, text: str, expected: dict[str, Any]
) -> None:
    assert read(reader_of(family), [text]) == expected
    assert read(reader_of(family), list(text)) == expected


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        ("hermes", 'hi <tool_call>{"na', said("hi ")),
        ("hermes", '<tool_call>{"name": "go", "arguments": {"q"', said("", ["go", '{"q"'])),
        ("hermes", "a <tool_ca", said("a <tool_ca")),
        ("default", '{"name": "Bo', said('{"name": "Bo')),
        ("default", LOOK + '; {"na', said("", LOOKED)),
        ("pythonic", "[go(), look(q=1", said("", ["go", "{}"])),
        ("mistral", "hi [TOOL_CALLS]lo", said("hi ")),
        ("thoughts", "<think>hm</think>hi <tool_call>", said("hi ", reasoning="hm")),
        ("channels", "<|channel|>commentary to=functions.g", said()),
    ],
)
def test_the_beginning_of_a_call_that_is_cut_off_is_no_content(
    family: str, text: str, expected: dict[str, Any]
) -> None:
    assert read(reader_of(family), list(text), is_cut=True) == expected


@pytest.mark.parametrize(
    ("family", "marks", "expected"),
    [
        ("hermes", ("<tool_call>", "</tool_call>"), said("", LOOKED)),
        ("mistral", ("[TOOL_CALLS]", "[ARGS]"), said("", ["look", '{"q": 1}'], ["go", "{}"])),
        ("channels", ("<|channel|>", "<|message|>", "<|end|>", "<|start|>"), said("Hi", reasoning="hm")),
    ],
)
def test_marks_that_are_tokens_are_not_read_in_letters(
    family: str, marks: tuple[str, ...], expected: dict[str, Any]
) -> None:
    text = {"hermes": HERMES, "mistral": LISTED, "channels": f"{HM}{FINAL}Hi"}[family]
    spelled = text.replace("x}<tool_call>", "x}")
    tokens = spelled
    for mark in marks:
        tokens = tokens.replace(mark, as_token(mark))

    found = read(reader_of(family, as_token), [tokens])

    assert found == (said("", ["look", '{"q": "x}"}']) if family == "hermes" else expected)
    assert read(reader_of(family, as_token), [spelled]) == said(spelled)


def test_of_an_answer_that_must_be_a_call_nothing_else_is_told() -> None:
    for length in range(len(HERMES)):
        told = read(OnlyCalls(reader_of("hermes")), [HERMES[:length]], is_cut=True)
        assert told["content"] == ""
    assert read(OnlyCalls(reader_of("hermes")), [f"{HERMES}\n{HERMES}"]) == said("", LOOKED, LOOKED)


PARTS = (
    "<tool_call>", "</tool_call>", LOOK, HERMES, LISTED, "<|python_tag|>", "[look(q='a')]", "[TOOL_CALLS]",
    "<think>", "</think>", '{"name": "go", ', '"arguments": {', "}", "]", "; ", "\n", " ", "go[ARGS]{}",
    '"', "\\",
    "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant", "commentary to=functions.go",
    "analysis", "x", "<function=look>", "<parameter=q>", "</parameter>", "</function>",
)  # fmt: skip
texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8).map("".join)
FAMILIES = (*SOURCES, "channels", "thoughts", "inside")


@pytest.mark.parametrize("family", FAMILIES)
@given(text=texts, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_how_a_text_is_cut_changes_nothing(family: str, text: str, cuts: list[int]) -> None:
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(ends)]

    assert read(reader_of(family), pieces) == read(reader_of(family), [text])


@pytest.mark.parametrize("family", list(SOURCES))
@given(text=texts)
def test_text_without_a_call_is_all_content(family: str, text: str) -> None:
    told = read(reader_of(family), list(text))

    assert told["calls"] or told["content"] == text


@pytest.mark.parametrize(
    ("family", "write"),
    [
        ("hermes", lambda call: f"<tool_call>\n{json.dumps(call)}\n</tool_call>"),
        ("default", json.dumps),
        ("mistral", lambda call: f"[TOOL_CALLS]{json.dumps([call])}"),
        ("objects", lambda call: json.dumps({"name": call["name"], "parameters": call["arguments"]})),
    ],
)
@given(arguments=st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_arguments_come_as_they_were_written(
    family: str, write: Callable[[Any], str], arguments: dict[str, Any]
) -> None:
    told = read(reader_of(family), list(write({"name": "go", "arguments": arguments})))

    assert told == said("", ["go", json.dumps(arguments)])
