"""The protocol's prompt cache over the real scheduler and cache, as the protocol's own client sees it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import response as responses

from gateway.settings import Settings
from tests.integration.scripted_gateway import (
    TEMPLATE_TOKENS,
    ScriptedGateway,
    engine_info,
    scripted_gateway,
)
from tests.scripted import ScriptedRunner, emit

pytestmark = pytest.mark.anyio

ANSWER = "It was a dark and stormy night."
KEYS = {name: name * 16 for name in "ab"}
SETTINGS = Settings.model_validate({"keys": [{"key": key, "tenant": name} for name, key in KEYS.items()]})
BEFORE_CONTENT = len("user\n") + 1  # tokens of the template


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator["Served"]:
    info = engine_info(num_blocks=64, context_length=512)  # half of the blocks may be pinned
    runner = ScriptedRunner(emit([*ANSWER.encode()], then=257), info=info)
    async with scripted_gateway(runner, tmp_path, settings=SETTINGS) as gateway:
        yield Served(gateway, runner)


class Served:
    """A gateway, and the protocol's client of it."""

    def __init__(self, gateway: ScriptedGateway, runner: ScriptedRunner) -> None:
        self.gateway = gateway
        self.runner = runner

    async def ask(self, content: object, *, of: str = "a", **fields: Any) -> ChatCompletion:
        client = AsyncOpenAI(
            api_key=KEYS[of], base_url=f"{self.gateway.client.base_url}/v1", http_client=self.gateway.client
        )
        messages: Any = [{"role": "user", "content": content}]
        return await client.chat.completions.create(model="scripted", messages=messages, **fields)

    async def computed(self, content: object, **fields: Any) -> int:
        """How many tokens a prompt took beside the answer's."""
        before = self.runner.num_computed
        answer = await self.ask(content, **fields)
        return self.runner.num_computed - before - answer.usage.completion_tokens


def part(text: str, **breakpoint_: object) -> dict[str, object]:
    marked = {"prompt_cache_breakpoint": {"mode": "explicit", **breakpoint_}}
    return {"type": "text", "text": text, **marked}


def plain(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def told(answer: ChatCompletion) -> tuple[int | None, int | None]:
    """Tokens found, and tokens written."""
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    details = answer.usage.prompt_tokens_details
    return details.cached_tokens, details.cache_write_tokens


def diagnosis(answer: ChatCompletion) -> Any:
    raw: Any = (answer.model_extra or {})["prompt_cache_diagnostics"]
    kinds = {
        "cache_hit": responses.PromptCacheDiagnosticsCacheHit,
        "cache_miss": responses.PromptCacheDiagnosticsCacheMiss,
        "comparison_response_not_found": responses.PromptCacheDiagnosticsComparisonResponseNotFound,
        "unavailable": responses.PromptCacheDiagnosticsUnavailable,
    }
    return kinds[raw["type"]].model_validate(raw)


def compared_with(answer: ChatCompletion, **more: object) -> dict[str, object]:
    return {"prompt_cache_options": {"comparison_response_id": answer.id, **more}}


async def test_what_is_written_is_what_was_not_found(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        first = await server.ask("q" * 81)
        again = await server.ask("q" * 81)
        longer = await server.ask("q" * 81 + "r" * 40)

    num_tokens = 81 + TEMPLATE_TOKENS
    num_common = BEFORE_CONTENT + 81
    assert told(first) == (0, num_tokens)
    assert told(again) == (num_tokens - 1, 0)
    assert told(longer) == (num_common, num_tokens + 40 - num_common)


async def test_a_read_only_request_writes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        side = await server.ask("q" * 81, extra_body={"cache": "read-only"})

    assert told(side) == (0, 0)


async def test_prewarming_fills_the_cache_and_says_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        warm = await server.ask("q" * 81, extra_body={"prompt_cache_options": {"prewarm": True}})
        answer = await server.ask("q" * 81)

    (choice,) = warm.choices
    assert (choice.message.content, choice.finish_reason) == ("", "stop")
    assert warm.usage is not None
    assert warm.usage.completion_tokens == 0
    assert told(warm) == (0, 81 + TEMPLATE_TOKENS)
    assert told(answer) == (80 + TEMPLATE_TOKENS, 0)


async def test_an_explicit_request_leaves_what_ends_at_a_breakpoint_and_nothing_else(tmp_path: Path) -> None:
    content = [part("q" * 81), plain("r" * 50)]
    async with served(tmp_path) as server:
        first = await server.ask(content, extra_body={"prompt_cache_options": {"mode": "explicit"}})
        again = await server.ask(content, extra_body={"prompt_cache_options": {"mode": "explicit"}})
        implicit = await server.ask([plain("q" * 81 + "r" * 50)])

    num_kept = BEFORE_CONTENT + 81  # the exact token, which ends no block
    assert num_kept % 16
    assert first.choices[0].message.content == ANSWER
    assert told(first) == (0, num_kept)
    assert told(again) == (num_kept, 0)
    assert told(implicit) == (num_kept, 50 + TEMPLATE_TOKENS - BEFORE_CONTENT)


async def test_an_explicit_prompt_is_computed_once(tmp_path: Path) -> None:
    content = [part("q" * 81), plain("r" * 50)]
    async with served(tmp_path) as server:
        num_computed = await server.computed(
            content, extra_body={"prompt_cache_options": {"mode": "explicit"}}
        )

    assert num_computed == 81 + 50 + TEMPLATE_TOKENS


async def test_an_explicit_request_without_breakpoints_leaves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        first = await server.ask("q" * 81, extra_body={"prompt_cache_options": {"mode": "explicit"}})
        again = await server.ask("q" * 81)

    assert (told(first)[1], told(again)[0]) == (0, 0)


async def test_only_the_latest_four_breakpoints_are_written(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        content = [part("q" * 10, ttl="12h"), *[part("r" * 10)] * 4]
        answer = await server.ask(content, extra_body={"prompt_cache_options": {"mode": "explicit"}})

    details = answer.usage.prompt_tokens_details
    by_ttl = (details.model_extra or {})["cache_write_tokens_details"]
    assert by_ttl == {"ttl_30m_tokens": BEFORE_CONTENT + 50, "ttl_12h_tokens": 0}


async def test_a_lifetime_keeps_a_prompt_when_others_need_its_room(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        kept = await server.ask("k" * 200, prompt_cache_options={"ttl": "30m"})
        await server.ask("l" * 200)
        for letter in "uvwxyz":
            await server.ask(letter * 300)
        found = [told(await server.ask(letter * 200))[0] for letter in "kl"]

    details = kept.usage.prompt_tokens_details
    by_ttl = (details.model_extra or {})["cache_write_tokens_details"]
    assert by_ttl == {"ttl_30m_tokens": 200 + TEMPLATE_TOKENS, "ttl_12h_tokens": 0}
    assert found == [199 + TEMPLATE_TOKENS, BEFORE_CONTENT]


async def test_a_key_keeps_the_newest_of_its_prompts(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for letter in "kl":
            await server.ask(letter * 200, prompt_cache_key="one", prompt_cache_options={"ttl": "30m"})
        for letter in "uvwxyz":
            await server.ask(letter * 300)
        found = [told(await server.ask(letter * 200))[0] for letter in "lk"]

    assert found == [199 + TEMPLATE_TOKENS, BEFORE_CONTENT]


async def test_what_cannot_be_kept_for_a_time_is_answered_all_the_same(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        answers = [await server.ask(letter * 300, prompt_cache_options={"ttl": "30m"}) for letter in "uvwxyz"]

    kept = [
        (answer.usage.prompt_tokens_details.model_extra or {})["cache_write_tokens_details"]["ttl_30m_tokens"]
        for answer in answers
    ]
    assert {answer.choices[0].message.content for answer in answers} == {ANSWER}
    assert kept[0] == 300 + TEMPLATE_TOKENS
    assert kept[-1] == 0


async def test_a_prompt_that_goes_on_from_an_earlier_one_is_a_hit(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        first = await server.ask("q" * 81)
        again = await server.ask("q" * 81, extra_body=compared_with(first))

    assert diagnosis(again).type == "cache_hit"


async def test_a_prompt_that_parts_from_an_earlier_one_is_told_where(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        first = await server.ask("q" * 81)
        other = await server.ask("q" * 50 + "r" * 31, extra_body=compared_with(first))

    said = diagnosis(other)
    num_common = BEFORE_CONTENT + 50
    assert (said.type, said.reason) == ("cache_miss", "input_changed")
    assert said.comparison_reusable_tokens == num_common
    assert said.cache_missed_tokens == 81 + TEMPLATE_TOKENS - num_common


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt_cache_key": "other"}, "prompt_cache_key_changed"),
        ({"cache_salt": "other"}, "prompt_cache_key_changed"),
        ({"prompt_cache_key": "other", "response_format": {"type": "text"}}, "prompt_cache_key_changed"),
        ({"response_format": {"type": "text"}}, "text_format_changed"),
    ],
)
async def test_what_else_has_changed_is_told_first(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    async with served(tmp_path) as server:
        first = await server.ask("q" * 81)
        other = await server.ask("r" * 81, extra_body={**compared_with(first), **fields})

    assert diagnosis(other).reason == reason


async def test_what_is_gone_without_a_change_is_told_as_unavailable(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        first = await server.ask("q" * 200)
        for letter in "uvwxyz":
            await server.ask(letter * 300)
        again = await server.ask("q" * 200, extra_body=compared_with(first))

    assert diagnosis(again).type == "unavailable"


async def test_nobody_is_compared_with_another_tenant(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        first = await server.ask("q" * 81)
        others = await server.ask("q" * 81, of="b", extra_body=compared_with(first))
        unknown = await server.ask(
            "q" * 81, extra_body={"prompt_cache_options": {"comparison_response_id": "chatcmpl-none"}}
        )

    assert diagnosis(others).type == "comparison_response_not_found"
    assert diagnosis(unknown).type == "comparison_response_not_found"
