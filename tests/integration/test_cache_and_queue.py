"""What the cache and the queue do for clients, as their usage and the order of their answers tell it."""

import asyncio
from collections.abc import Sequence as Sequences
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.scheduler import Limits
from engine.step import Step
from gateway.settings import Settings
from tests.gateway.talk import CHAT, body, content_of, error_of, events_of
from tests.integration.scripted_gateway import (
    TEMPLATE_TOKENS,
    Brake,
    RememberingRunner,
    ScriptedGateway,
    engine_info,
    saying,
    scripted_gateway,
    slowly,
)
from tests.scripted import ScriptedRunner, emit

pytestmark = pytest.mark.anyio

ANSWER = "It was a dark and stormy night."
SPEAKS = emit([*ANSWER.encode()], then=257)
ENDLESS = emit([], then=ord("z"))
POOL = 64 * 16  # tokens


def cached(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def turns(*contents: str) -> dict[str, Any]:
    """A conversation in which user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(contents)]
    return body(messages=messages)


async def test_the_next_turn_finds_the_answer_in_the_cache_and_not_the_prompt_alone(tmp_path: Path) -> None:
    async with scripted_gateway(ScriptedRunner(SPEAKS, info=engine_info()), tmp_path) as gateway:
        first = await gateway.client.post(CHAT, json=turns("q" * 81))
        second = await gateway.client.post(CHAT, json=turns("q" * 81, ANSWER, "r" * 50))

    assert first.json()["usage"]["prompt_tokens"] == 81 + TEMPLATE_TOKENS
    assert cached(second) >= first.json()["usage"]["total_tokens"] - 1


async def test_a_client_that_keeps_a_part_of_the_answer_still_finds_all_before_it(tmp_path: Path) -> None:
    async with scripted_gateway(ScriptedRunner(SPEAKS, info=engine_info()), tmp_path) as gateway:
        first = await gateway.client.post(CHAT, json=turns("q" * 81))
        second = await gateway.client.post(CHAT, json=turns("q" * 81, ANSWER[10:], "r"))
        third = await gateway.client.post(CHAT, json=turns("q" * 81, ANSWER[10:], "r", ANSWER[10:], "s"))

    assert cached(second) >= first.json()["usage"]["prompt_tokens"]
    assert cached(third) >= second.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("num_tokens", [20, 31, 32, 33, 63, 64, 65, 128])
async def test_a_prompt_sent_again_is_all_cached_but_its_last_token(tmp_path: Path, num_tokens: int) -> None:
    runner = ScriptedRunner(SPEAKS, info=engine_info())
    async with scripted_gateway(runner, tmp_path) as gateway:
        answers = [await gateway.ask(num_tokens - TEMPLATE_TOKENS, logprobs=True) for _ in range(4)]
        idle = await gateway.until_idle()

    assert [cached(answer) for answer in answers] == [0, *[num_tokens - 1] * 3]
    assert len({str(answer.json()["choices"]) for answer in answers}) == 1
    assert idle.num_computed_prompt_tokens == num_tokens + 3


@pytest.mark.parametrize("streamed", [True, False])
async def test_choices_that_share_one_new_prompt_found_nothing_in_the_cache(
    tmp_path: Path, streamed: bool
) -> None:
    """That the others start from what the first computed is not a hit that the client is told of."""
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    async with scripted_gateway(ScriptedRunner(SPEAKS, info=engine_info()), tmp_path) as gateway:
        answer = await gateway.ask(81, n=4, **fields)

    usage = events_of(answer.text)[-2]["usage"] if streamed else answer.json()["usage"]
    assert usage["prompt_tokens"] == 81 + TEMPLATE_TOKENS
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_another_tenant_finds_nothing_and_cannot_look(tmp_path: Path) -> None:
    keys = {name: {"authorization": f"Bearer {name * 16}"} for name in "ab"}
    settings = Settings.model_validate({"keys": [{"key": name * 16, "tenant": name} for name in keys]})
    runner = ScriptedRunner(SPEAKS, info=engine_info())
    async with scripted_gateway(runner, tmp_path, settings=settings) as gateway:
        before = runner.num_computed
        found = {}
        for place, name in enumerate("abab"):
            response = await gateway.client.post(CHAT, json=saying(200), headers=keys[name])
            found[place] = cached(response)
        error_of(await gateway.client.get("/metrics", headers=keys["b"]), 403)

    assert found == {0: 0, 1: 0, 2: 218, 3: 218}
    assert runner.num_computed - before == 2 * 219 + 2 + 4 * len(ANSWER)


async def test_a_near_copy_of_a_tenants_prompt_tells_another_nothing(tmp_path: Path) -> None:
    keys = {name: {"authorization": f"Bearer {name * 16}"} for name in "ab"}
    settings = Settings.model_validate({"keys": [{"key": name * 16, "tenant": name} for name in keys]})
    runner = ScriptedRunner(SPEAKS, info=engine_info())
    async with scripted_gateway(runner, tmp_path, settings=settings) as gateway:
        await gateway.client.post(CHAT, json=turns("q" * 200), headers=keys["a"])
        answers = [
            await gateway.client.post(CHAT, json=turns(guess), headers=keys["b"])
            for guess in ("q" * 199 + "r", "p" * 200)
        ]

    # the second shares the template's own head with the first of the same tenant, and no more
    assert [cached(answer) for answer in answers] == [0, TEMPLATE_TOKENS - 13]


async def ends(tasks: Sequences[asyncio.Task[httpx.Response]]) -> list[str]:
    """The names of requests in the order in which they are answered."""
    order: list[str] = []
    for task in tasks:
        task.add_done_callback(lambda done: order.append(done.get_name()))
    for response in await asyncio.gather(*tasks):
        assert response.status_code == 200, response.text
    return order


async def test_small_requests_do_not_wait_behind_one_that_lacks_blocks(tmp_path: Path) -> None:
    """The big one waits for the first to end, and ten small ones in order do not wait for either."""
    brake = Brake(before_step=2)
    async with scripted_gateway(
        ScriptedRunner(ENDLESS, info=engine_info(), before_step=brake), tmp_path
    ) as it:
        names = ["first", "big", *(f"small {number}" for number in range(10))]
        sizes = [(600, 200), (500, 4), *([(20, 4)] * 10)]
        tasks = []
        for name, (num_bytes, max_tokens) in zip(names, sizes, strict=True):
            asking = it.ask(num_bytes, first=name[-1], max_tokens=max_tokens)
            tasks.append(asyncio.create_task(asking, name=name))
            if name == "first":
                await brake.until_it_holds()
            await asyncio.sleep(0.02)
        brake.let_go()
        order = await ends(tasks)
        await it.until_idle()

    # Those that end in one step are told of it in any order.
    assert sorted(order[:10]) == [f"small {number}" for number in range(10)]
    assert order[10:] == ["first", "big"]


async def test_a_running_stream_gets_a_token_of_every_step_while_prompts_arrive(tmp_path: Path) -> None:
    steps: list[dict[int, int]] = []  # of each: computed tokens by the length of the request's prompt
    script = emit([], then=ord("z"))

    def note(step: Step) -> None:
        steps.append({span.sequence.num_prompt_tokens: span.end - span.start for span in step.spans})

    runner = ScriptedRunner(script, info=engine_info(num_blocks=256), before_step=note)
    limits = Limits(max_batch_tokens=32, max_sequences=16)
    async with scripted_gateway(runner, tmp_path, limits=limits) as gateway:
        stream = asyncio.create_task(gateway.stream(1, max_tokens=200))
        prompts = [gateway.ask(300 + number, first=f"{number}", max_tokens=1) for number in range(10)]
        assert {response.status_code for response in await asyncio.gather(*prompts)} == {200}
        await stream

    ours = [place for place, step in enumerate(steps) if 1 + TEMPLATE_TOKENS in step]
    assert ours == list(range(ours[0], ours[0] + 200))
    assert all(sum(step.values()) <= 32 for step in steps)
    assert sum(len(step) > 1 for step in steps) > 50, "prompts were computed beside the stream"


async def test_what_exceeds_the_pool_is_refused_at_once_and_delays_nobody(tmp_path: Path) -> None:
    runner = ScriptedRunner(ENDLESS, info=engine_info(num_blocks=16))
    async with scripted_gateway(runner, tmp_path) as gateway:
        prompt = error_of(await gateway.ask(256 - TEMPLATE_TOKENS + 1, max_tokens=4, stream=True), 400)
        answer = error_of(await gateway.ask(252 - TEMPLATE_TOKENS, max_tokens=64), 400)
        assert (await gateway.ask(max_tokens=8)).status_code == 200

    assert {prompt["code"], answer["code"]} == {"context_length_exceeded"}
    assert "256" in prompt["message"]
    assert "256" in answer["message"]


async def test_an_answer_may_fill_the_pool_to_its_last_slot(tmp_path: Path) -> None:
    runner = ScriptedRunner(ENDLESS, info=engine_info(num_blocks=16))
    async with scripted_gateway(runner, tmp_path) as gateway:
        exact = await gateway.ask(252 - TEMPLATE_TOKENS, max_tokens=4)
        unbounded = await gateway.ask(100 - TEMPLATE_TOKENS, first="u")
        error_of(await gateway.ask(252 - TEMPLATE_TOKENS, max_tokens=5), 400)
        idle = await gateway.until_idle()

    assert exact.json()["usage"]["completion_tokens"] == 4
    assert unbounded.json()["choices"][0]["finish_reason"] == "length"
    assert unbounded.json()["usage"]["total_tokens"] == 256
    assert idle.num_preemptions == 0


async def test_forks_of_one_conversation_share_it_and_answer_as_if_alone(tmp_path: Path) -> None:
    """What they share ends inside a block; a salt of its own makes a request compute everything anew."""

    def said(answer: httpx.Response) -> list[str]:
        return [choice["message"]["content"] for choice in answer.json()["choices"]]

    async with scripted_gateway(RememberingRunner(num_blocks=128), tmp_path) as gateway:
        (begun,) = said(await gateway.client.post(CHAT, json=turns("q" * 40) | {"max_tokens": 4}))
        requests = [
            turns("q" * 40, begun, letter) | {"max_tokens": 40, "n": n}
            for letter, n in (("a", 1), ("b", 1), ("c", 4), ("c", 1))
        ]
        shared = await asyncio.gather(*(gateway.client.post(CHAT, json=request) for request in requests))
        salted = [request | {"cache_salt": f"{place}"} for place, request in enumerate(requests)]
        alone = [await gateway.client.post(CHAT, json=request) for request in salted]
        idle = await gateway.until_idle()

    assert [said(answer) for answer in shared] == [said(answer) for answer in alone]
    assert all(cached(answer) >= 40 + TEMPLATE_TOKENS + 3 for answer in shared)
    assert [cached(answer) for answer in (alone[0], alone[1], alone[3])] == [0, 0, 0]
    assert idle.num_copied_blocks >= 4


async def continued(gateway: ScriptedGateway, begun: str) -> tuple[httpx.Response, httpx.Response]:
    """The next turn after an answer, warm, and computed anew under a salt of its own."""
    await gateway.until_idle()
    request = turns("q" * 40, begun, "and then?") | {"max_tokens": 30}
    warm = await gateway.client.post(CHAT, json=request)
    return warm, await gateway.client.post(CHAT, json=request | {"cache_salt": "s"})


@pytest.mark.parametrize("end", [{"max_tokens": 16}, {"max_tokens": 60, "stop": ["a", "e", "i", "o"]}])
async def test_after_an_answer_that_was_cut_the_next_one_is_as_if_computed_anew(
    tmp_path: Path, end: dict[str, Any]
) -> None:
    async with scripted_gateway(RememberingRunner(), tmp_path) as gateway:
        cut = await gateway.client.post(CHAT, json=turns("q" * 40) | end)
        begun = cut.json()["choices"][0]["message"]["content"]
        warm, anew = await continued(gateway, begun)

    assert warm.json()["choices"] == anew.json()["choices"]
    assert 40 + TEMPLATE_TOKENS <= cached(warm) <= 40 + TEMPLATE_TOKENS + len(begun)
    assert cached(anew) == 0


async def test_after_a_client_that_left_the_next_answer_is_as_if_computed_anew(tmp_path: Path) -> None:
    async with scripted_gateway(RememberingRunner(before_step=slowly), tmp_path) as gateway:
        begun = await heard(gateway, turns("q" * 40), num_letters=9)
        warm, anew = await continued(gateway, begun)

    assert warm.json()["choices"] == anew.json()["choices"]
    assert cached(warm) >= 40 + TEMPLATE_TOKENS + len(begun) - 1
    assert cached(anew) == 0


async def heard(gateway: ScriptedGateway, request: dict[str, Any], num_letters: int) -> str:
    """What a client hears of a stream that it leaves after so many letters."""
    text = ""
    async with gateway.client.stream("POST", CHAT, json=request | {"stream": True}) as response:
        lines = response.aiter_lines()
        while len(text) < num_letters:
            text += content_of(events_of(await anext(lines)))
    return text


async def test_answers_stay_right_while_the_pool_is_too_small_for_all(tmp_path: Path) -> None:
    """Prompts are evicted, and running answers are put back into the queue."""
    async with scripted_gateway(RememberingRunner(20, before_step=slowly), tmp_path) as gateway:
        alone = [await gateway.ask(40, first=letter, max_tokens=100) for letter in "stuv"]
        for _ in range(2):
            asking = (gateway.ask(40, first=letter, max_tokens=100) for letter in "stuv")
            together = await asyncio.gather(*asking)

            assert [each.json()["choices"] for each in together] == [each.json()["choices"] for each in alone]
        idle = await gateway.until_idle()

    assert idle.num_preemptions > 0
    assert idle.num_evicted_blocks > 0


THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("sent_back", ["Answer", "<think>hm</think>Answer"])
async def test_thoughts_that_a_template_drops_cost_their_own_turn_and_nothing_before_it(
    tmp_path: Path, sent_back: str
) -> None:
    thinks = emit([*b"<think>hm</think>Answer"], then=257)
    messages: list[dict[str, Any]] = []
    usages = []
    runner = ScriptedRunner(thinks, info=engine_info())
    async with scripted_gateway(runner, tmp_path, template=THINKING) as gateway:
        for number in range(3):
            messages.append({"role": "user", "content": f"{number}" * 40})
            answer = (await gateway.client.post(CHAT, json=body(messages=messages))).json()
            usages.append(answer["usage"])
            messages.append({"role": "assistant", "content": sent_back})
        await gateway.until_idle()

    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Answer", "hm")
    assert usages[0]["prompt_tokens"] == 40 + TEMPLATE_TOKENS
    for earlier, later in pairwise(usages):
        assert later["prompt_tokens_details"]["cached_tokens"] >= earlier["prompt_tokens"]
        assert later["prompt_tokens"] == earlier["prompt_tokens"] + len("Answer") + 40 + TEMPLATE_TOKENS + 2
