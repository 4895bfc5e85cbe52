"""Chat templates run in a sandbox, and whatever goes wrong in them is the request's fault, said clearly."""

from datetime import datetime
from typing import Any

import pytest

from gateway.conversation.template import CHATML, ChatTemplate, TemplateRefused

NOW = datetime(2026, 3, 1, 12, 30)


def rendered(source: str, *messages: dict[str, Any], generate: bool = False) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(messages, now=NOW, add_generation_prompt=generate)


def test_a_model_without_template_gets_chatml() -> None:
    text = rendered(CHATML, {"role": "user", "content": "hi"}, generate=True)

    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_templates_find_the_words_that_they_expect() -> None:
    source = "{{ bos_token }}{{ strftime_now('%d %B %Y') }}{{ messages[0] | tojson }}{{ eos_token }}"

    assert rendered(source, {"content": "<é>'"}) == """<s>01 March 2026{"content": "<é>'"}</s>"""


def test_templates_choose_the_form_of_json() -> None:
    source = (
        "{{ messages[0] | tojson(ensure_ascii=True, indent=None, separators=(',', ':'), sort_keys=True) }}"
    )

    assert rendered(source, {"é": 1, "content": 2}) == '{"content":2,"\\u00e9":1}'


def test_what_the_model_is_said_to_write_is_rendered_as_it_stands() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}"

    assert rendered(source, {"content": "a"}, {"content": "b"}) == "a.b."


def test_contents_come_in_parts_where_the_template_reads_parts() -> None:
    source = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"

    assert rendered(source, {"role": "user", "content": "hi"}, {"role": "user", "content": ""}) == "[hi]"


CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
AS_DATA = (
    CALLS
    + "{% for key, value in c.function.arguments.items() %}{{ key }}{% endfor %}{% endfor %}{% endfor %}"
)
AS_TEXT = CALLS + "{{ ' ' + c.function.arguments }}{% endfor %}{% endfor %}"
WITHOUT_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"


@pytest.mark.parametrize(
    ("source", "takes_system", "arguments"),
    [
        (CHATML, True, "any"),
        (AS_DATA, True, "data"),
        (AS_TEXT, True, "text"),
        (WITHOUT_SYSTEM + CHATML, False, "any"),
        ("{{ raise_exception('nothing at all') }}", True, "any"),
    ],
)
def test_what_a_template_takes_is_found_by_trying(source: str, takes_system: bool, arguments: str) -> None:
    template = ChatTemplate(source)

    assert (template.takes_system, template.arguments) == (takes_system, arguments)


def test_a_template_that_shows_no_message_is_given_text() -> None:
    assert rendered("{{ messages[0].content is string }}", {"role": "user", "content": "hi"}) == "True"


def test_the_names_that_a_template_asks_for_are_found() -> None:
    source = "{% set a = a | default(1) %}{% for b in c %}{{ b.d }}{{ 'e' }}{% endfor %}{{ f is defined }}"

    assert ChatTemplate(source).asked == {"a", "c", "f"}


def test_blocks_take_their_line_with_them() -> None:
    assert rendered("{% if true %}\n  {% if true %}\na\n  {% endif %}\n{% endif %}\n") == "a\n"


def test_loops_may_be_left_early() -> None:
    assert (
        rendered("{% for i in range(9) %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}") == "012"
    )


def test_the_template_s_own_refusal_is_passed_on() -> None:
    with pytest.raises(TemplateRefused, match=r"^Only user and assistant roles are supported$"):
        rendered("{{ raise_exception('Only user and assistant roles are supported') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.at_all }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_fails_inside_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefused):
        rendered(source, {"content": "text"})


def test_a_source_that_is_no_template_is_an_error_of_the_model_s() -> None:
    with pytest.raises(ValueError, match="chat template cannot be read"):
        ChatTemplate("{% if %}")
