"""Calls that a template writes are read again as what they were, for templates in each family's manner."""

import json
from datetime import datetime
from typing import Any

import pytest

from gateway.conversation.briefing import Briefing
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.reading import Readings
from gateway.tools.said import TOKEN_SIGN
from gateway.wire.parse import parse_chat_request
from tests.fakes import ByteTokenizer
from tests.gateway.tools.test_readers import read

ARGUMENTS = {"q": 'Par}is "é" <b>', "n": 3, "list": [1, {"a": None}]}
PROPERTIES = {"q": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": PROPERTIES}},
}
EACH = "{% for call in m.tool_calls %}{% set f = call.function %}"
END = "{% endfor %}"
NAMED = '{"name": "{{ f.name }}", '
TURNS = (
    "{% for m in messages %}{% if m.tool_calls %}<<BEGIN>>{% generation %}CALLS{% endgeneration %}<<END>>"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
# a template's calls, and the marks that are tokens
WRITTEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "hermes": (
        EACH + "<tool_call>\n" + NAMED + '"arguments": {{ f.arguments | tojson }}}\n</tool_call>\n' + END,
        ("<tool_call>", "</tool_call>"),
    ),
    "tagged": (
        EACH
        + "<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments.items() %}"
        + "<parameter={{ key }}>\n{{ value if value is string else value | tojson }}\n"
        + "</parameter>\n{% endfor %}</function>\n</tool_call>\n"
        + END,
        (),
    ),
    "objects": (
        EACH + "<|python_tag|>" + NAMED + '"parameters": {{ f.arguments | tojson }}}' + END,
        ("<|python_tag|>",),
    ),
    "listed": (
        "[TOOL_CALLS]["
        + EACH
        + NAMED
        + '"arguments": {{ f.arguments | tojson }}, "id": "{{ call.id }}"}'
        + "{% if not loop.last %}, {% endif %}"
        + END
        + "]",
        ("[TOOL_CALLS]",),
    ),
    "named": (
        EACH + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}" + END,
        ("[TOOL_CALLS]", "[ARGS]"),
    ),
    "text": (
        EACH + "<tool_call>" + NAMED + "\"arguments\": {{ '' + f.arguments }}}</tool_call>" + END,
        ("<tool_call>", "</tool_call>"),
    ),
    "channels": (
        EACH
        + "<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>"
        + "{{ f.arguments | tojson }}<|call|>"
        + END,
        ("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"),
    ),
}


@pytest.mark.parametrize(
    ("family", "num_calls"),
    # a message on a channel calls once
    [*((family, 1) for family in WRITTEN), *((family, 2) for family in WRITTEN if family != "channels")],
)
def test_what_a_template_writes_is_read_again(family: str, num_calls: int) -> None:
    calls, marks = WRITTEN[family]
    tokenizer = ByteTokenizer(("<|im_end|>", *marks))
    template = ChatTemplate(TURNS.replace("CALLS", calls))
    prompts = Prompts(TextModel(tokenizer, template, (256,)), transcript_bytes=1 << 20)
    function = {"name": "look", "arguments": json.dumps(ARGUMENTS)}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call] * num_calls},
    ]
    body = {"model": "m", "messages": messages, "tools": [TOOL]}
    chat = parse_chat_request(json.dumps(body).encode()).chat

    prompt = prompts.render(
        [message.for_template() for message in chat.messages],
        tenant="t", now=datetime(2026, 3, 1), add_generation_prompt=False, briefing=Briefing([TOOL], {}),
    )  # fmt: skip
    reader = Readings(prompts).of(chat, prompt).reader()

    names = {token_id: TOKEN_SIGN + mark for mark, token_id in tokenizer.special_tokens.items()}
    spelled = "".join([unit if isinstance(unit, str) else names[unit] for unit in prompt.rendering.units])
    assert reader is not None
    told = read(reader, [spelled.partition("<<BEGIN>>")[2].partition("<<END>>")[0]])
    assert (told["content"].strip(), told["reasoning"]) == ("", "")
    assert [(name, json.loads(arguments)) for name, arguments in told["calls"]] == [
        ("look", ARGUMENTS)
    ] * num_calls
