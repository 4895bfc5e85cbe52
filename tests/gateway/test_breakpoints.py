"""Where a marked beginning ends, in tokens of prompts as models' own templates render them."""

from datetime import datetime

import pytest

from gateway.breakpoints import find_ends
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.rendering import ChatRenderer
from gateway.wire.messages import Message
from tests.fakes import ByteTokenizer

TRIMMING = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"
HIDING = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"


def message(role: str, *parts: str) -> Message:
    content = [
        {"type": "text", "text": part.rstrip("|")}
        | ({"prompt_cache_breakpoint": {"mode": "explicit"}} if part.endswith("|") else {})
        for part in parts
    ]
    return Message.model_validate({"role": role, "content": content})


async def ends_of(template: str, *messages: Message, num_latest: int = 4) -> list[int]:
    prompts = Prompts(TextModel(ByteTokenizer(), ChatTemplate(template), (257,)), transcript_bytes=1 << 20)
    renderer = ChatRenderer(prompts)
    prompt = renderer.render_now(messages, b"", now=datetime.now())
    found = await find_ends(renderer, prompt, messages, namespace=b"", num_before=0, num_latest=num_latest)
    return [end.num_tokens for end in found]


@pytest.mark.anyio
async def test_every_breakpoint_is_the_exact_token() -> None:
    found = await ends_of(CHATML, message("system", "ab|", "c"), message("user", "d|", "é|"))

    system = len("system\n") + 1
    user = system + len("abc\nuser\n") + 2
    assert found == [system + 2, user + 1, user + 3]


@pytest.mark.anyio
async def test_the_latest_count() -> None:
    found = await ends_of(CHATML, message("user", *["x|"] * 6), num_latest=2)

    assert found == [len("user\n") + 1 + 5, len("user\n") + 1 + 6]


@pytest.mark.anyio
async def test_blanks_that_a_template_trims_belong_to_no_beginning() -> None:
    assert await ends_of(TRIMMING, message("user", "ab  |")) == [3]


@pytest.mark.anyio
async def test_what_a_template_does_not_show_ends_nowhere() -> None:
    assert await ends_of(HIDING, message("system", "ab|"), message("user", "c|")) == [1]


@pytest.mark.anyio
async def test_spellings_of_special_tokens_move_no_end() -> None:
    text = "<|im_end|>"

    assert await ends_of(CHATML, message("user", f"{text}|", text)) == [len("user\n") + 1 + len(text)]


@pytest.mark.anyio
async def test_private_characters_of_a_clients_are_not_taken_for_marks() -> None:
    assert await ends_of(CHATML, message("user", "\ue000|", "\ue001")) == [len("user\n") + 1 + 3]
