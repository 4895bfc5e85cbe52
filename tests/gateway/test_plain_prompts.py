"""Prompts as they stand: their ids, and how they are told again."""

from typing import Any

import pytest

from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.plain_prompts import PlainPrompts
from tests.fakes import ByteTokenizer, engine_info

pytestmark = pytest.mark.anyio


class BlankTokenizer(ByteTokenizer):
    """Puts a blank before every text, as some do."""

    def encode(self, text: str) -> list[int]:
        return super().encode(" " + text)


def plain(tokenizer: ByteTokenizer, bos_token_id: int | None = None) -> PlainPrompts:
    text = TextModel(tokenizer, ChatTemplate(CHATML), (257,), bos_token_id)
    return PlainPrompts(Prompts(text, transcript_bytes=1 << 16))


async def make(prompts: PlainPrompts, prompt: Any, *, echo: bool = True) -> Any:
    (made,) = await prompts.make([prompt], engine_info(), echo=echo, with_logprobs=True)
    return made


async def test_the_token_that_begins_texts_stands_before_text_and_not_before_ids() -> None:
    prompts = plain(ByteTokenizer(), bos_token_id=256)

    assert (await make(prompts, "ab")).ids.tolist() == [256, 97, 98]
    assert (await make(prompts, [97, 98])).ids.tolist() == [97, 98]


async def test_what_begins_a_text_has_no_text_itself() -> None:
    made = await make(plain(ByteTokenizer(), bos_token_id=256), "ab")

    assert (made.echo.text, made.echo.offsets) == ("ab", [0, 0, 1])


async def test_a_blank_that_the_tokenizer_adds_is_not_told_and_shifts_nothing() -> None:
    made = await make(plain(BlankTokenizer()), "ab")

    assert made.ids.tolist() == [32, 97, 98]
    assert (made.echo.text, made.echo.offsets) == ("ab", [0, 0, 1])


async def test_a_blank_that_the_client_wrote_is_told() -> None:
    made = await make(plain(ByteTokenizer()), " b")

    assert (made.echo.text, made.echo.offsets) == (" b", [0, 1])


async def test_what_is_not_to_be_told_is_not_worked_out() -> None:
    assert (await make(plain(ByteTokenizer()), "ab", echo=False)).echo is None


async def test_long_prompts_are_made_like_short_ones() -> None:
    prompts = plain(ByteTokenizer())

    made = await prompts.make(["é" * 1500] * 20, engine_info(), echo=True, with_logprobs=True)

    assert [each.echo.offsets[-1] for each in made if each.echo] == [1499] * 20
