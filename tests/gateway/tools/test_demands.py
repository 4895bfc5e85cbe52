"""Grammars of calls: what they let through, and what not, for every form."""

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from gateway.grammars import whole
from gateway.schemas import schema_part
from gateway.tools.demands import Callee, calls_part, channels_part, free_part, thought_part
from gateway.tools.families import Shape, family_of
from gateway.tools.thoughts import THOUGHT_MARKS

MARKS = (
    "<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|constrain|>", "</think>",
    "<|start|>", "<|end|>",
)  # fmt: skip
CONTROL = {mark: 256 + place for place, mark in enumerate(MARKS)}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
CALLEES = [
    Callee("look", schema_part(SCHEMA, is_strict=True, path="p")),
    Callee("go", schema_part({"type": "object"}, is_strict=False, path="p")),
]
HERMES = '<tool_call>\n{"name": "look", "arguments": {"q": "x"}}\n</tool_call>'
BAD = '<tool_call>\n{"name": "look", "arguments": {"q": 1}}\n</tool_call>'
SOURCES = {
    "hermes": "<tool_call>",
    "objects": "<|python_tag|>",
    "listed": "[TOOL_CALLS]",
    "named": "[TOOL_CALLS][ARGS]",
}


class _Tokens:
    tokens = (*[bytes([byte]) for byte in range(256)], *[b"\xff" + mark.encode() for mark in MARKS])
    special_token_ids = tuple(CONTROL.values())
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, _text: str | bytes) -> list[int]:
        return []


TOKENIZER = LLTokenizer(TokenizerWrapper(_Tokens()))


def ids_of(text: str) -> list[int]:
    for mark, token_id in CONTROL.items():
        text = text.replace(mark, chr(0xE000 + token_id))
    return [
        each
        for letter in text
        for each in ([ord(letter) - 0xE000] if "\ue000" <= letter < "\uf000" else letter.encode())
    ]


def follows(part: str, text: str) -> bool:
    """Whether an answer may be exactly this text."""
    matcher = LLMatcher(TOKENIZER, whole(part))
    assert not matcher.is_error(), matcher.get_error()
    ids = ids_of(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def shape_of(family: str) -> Shape:
    return family_of(SOURCES[family], {}).shape


CALLS = {
    "hermes": HERMES,
    "objects": '{"name": "look", "parameters": {"q": "x"}}',
    "listed": '[TOOL_CALLS][{"name": "look", "arguments": {"q": "x"}}]',
    "named": '[TOOL_CALLS]look[ARGS]{"q": "x"}',
}
MORE = {
    "hermes": f"{HERMES}\n{HERMES}",
    "objects": f"{CALLS['objects']}; {CALLS['objects']}",
    "listed": CALLS["listed"][:-1] + ', {"name": "go", "arguments": {}}]',
    "named": CALLS["named"] + "[TOOL_CALLS]go[ARGS]{}",
}


@pytest.mark.parametrize("family", list(CALLS))
def test_a_demanded_call_is_one_and_nothing_else(family: str) -> None:
    part = calls_part(shape_of(family), CALLEES, CONTROL, is_one=True)

    assert follows(part, CALLS[family])
    assert not follows(part, CALLS[family].replace('"x"', "1"))
    assert not follows(part, CALLS[family].replace("look", "none"))
    assert not follows(part, "hello")
    assert not follows(part, MORE.get(family, "more"))


@pytest.mark.parametrize("family", list(MORE))
def test_several_calls_follow_each_other(family: str) -> None:
    assert follows(calls_part(shape_of(family), CALLEES, CONTROL, is_one=False), MORE[family])


@pytest.mark.parametrize("family", list(MORE))
def test_free_text_goes_on_as_it_likes_until_a_call_begins(family: str) -> None:
    part = free_part(shape_of(family), CALLEES, CONTROL, is_one=False)

    for text in ("hello <tool", "", CALLS[family], MORE[family]):
        assert follows(part, text), text
    assert not follows(part, CALLS[family].replace('"x"', "1"))
    assert follows(part, f"hi {CALLS[family]}")


@pytest.mark.parametrize("control", [CONTROL, {}])
@pytest.mark.parametrize(
    ("is_inside", "before"), [(True, "hm</think>\n\n"), (False, "<think>hm</think>"), (False, "")]
)
def test_reasoning_may_come_before_what_is_demanded(
    control: dict[str, int], is_inside: bool, before: str
) -> None:
    part = thought_part(THOUGHT_MARKS[0], '"yes"', control, is_inside=is_inside, max_tokens=None)

    matcher = LLMatcher(TOKENIZER, whole(part))
    ids = ids_of(before + "yes") if control else list((before + "yes").encode())
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("budget", "thought", "can_be"), [(3, "hm!", True), (3, "hm!!", False), (0, "", True), (0, "h", False)]
)
def test_reasoning_has_a_budget(budget: int, thought: str, can_be: bool) -> None:
    opened = thought_part(THOUGHT_MARKS[0], '"yes"', CONTROL, is_inside=True, max_tokens=budget)
    chosen = thought_part(THOUGHT_MARKS[0], '"yes"', CONTROL, is_inside=False, max_tokens=budget)

    assert follows(opened, f"{thought}</think>yes") == can_be
    assert follows(chosen, f"<think>{thought}</think>yes") == can_be
    assert follows(chosen, "yes")


def test_a_mark_that_is_a_token_is_not_spelled_inside_the_reasoning() -> None:
    part = thought_part(THOUGHT_MARKS[0], '"yes"', CONTROL, is_inside=True, max_tokens=None)

    matcher = LLMatcher(TOKENIZER, whole(part))
    spelled = list(b"hm</think")
    assert matcher.try_consume_tokens([*spelled, *b">"]) == len(spelled)


HM = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
SAID = "<|channel|>commentary<|message|>I look<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
LOOK = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"q": "x"}'
LOOK_FIRST = ' to=functions.look<|channel|>commentary <|constrain|>json<|message|>{"q": "x"}'


@pytest.mark.parametrize(
    ("part", "must_call", "budget", "good", "bad"),
    [
        (None, False, None, [FINAL, f"{HM}{SAID}{HM}{LOOK}", LOOK_FIRST, f"{HM}{FINAL}Hi"],
         ["Hi", HM, f"{FINAL}a{LOOK}"]),
        (None, True, None, [f"{HM}{LOOK}", f"{SAID}{LOOK}"], [f"{FINAL}Hi", f"{LOOK}{LOOK}"]),
        (None, True, 2, [f"{HM}{SAID}{LOOK}"], [f"{HM}{HM}{LOOK}", HM.replace("hm", "hmm") + LOOK]),
        ('"yes"', False, None, [f"{HM}{HM}{FINAL}yes", LOOK], [f"{FINAL}no", f"{SAID}{FINAL}yes"]),
        ('"yes"', False, 0, [f"{FINAL}yes"], [f"{HM}{FINAL}yes"]),
    ],
)  # fmt: skip
def test_messages_on_channels_are_held_as_others_are(
    part: str | None, must_call: bool, budget: int | None, good: list[str], bad: list[str]
) -> None:
    grammar = channels_part(CALLEES, part, CONTROL, must_call=must_call, max_tokens=budget)

    for text in good:
        assert follows(grammar, text), text
    for text in [*bad, LOOK.replace('"x"', "1"), LOOK.replace("look", "none")]:
        assert not follows(grammar, text), text
