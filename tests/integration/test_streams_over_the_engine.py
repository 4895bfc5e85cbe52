"""Clients that leave, and answers that end unevenly or badly, with the engine's blocks behind them."""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.scheduler import Limits
from engine.sequence import Sequence
from engine.step import Step
from tests.fakes import ByteTokenizer
from tests.gateway.talk import CHAT, choices_of, content_of, error_of, finish_of
from tests.integration.scripted_gateway import (
    WAIT_SECONDS,
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

ENDLESS = emit([], then=ord("z"))
POOL = 64 * 16  # tokens


def runner_of(script: Any = ENDLESS, num_blocks: int = 64, **how: Any) -> ScriptedRunner:
    return ScriptedRunner(script, info=engine_info(num_blocks), **how)


async def leave_after(gateway: ScriptedGateway, num_events: int, **fields: Any) -> None:
    """Read so many lines with data of a stream, then close the connection."""
    async with gateway.client.stream("POST", CHAT, json=saying(10, stream=True, **fields)) as response:
        async for line in response.aiter_lines():
            num_events -= line.startswith("data: ")
            if not num_events:
                return


async def hang_up(request: asyncio.Task[httpx.Response]) -> None:
    """Close the connection of a request that has no answer yet."""
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


@pytest.mark.parametrize("n", [1, 4])
async def test_a_client_that_leaves_a_stream_leaves_nothing_running(tmp_path: Path, n: int) -> None:
    async with scripted_gateway(runner_of(before_step=slowly), tmp_path) as gateway:
        await leave_after(gateway, 3, n=n, max_tokens=POOL - 100)

        idle = await gateway.until_idle()

    assert (idle.num_aborted, idle.num_finished) == (n, 0)
    assert idle.num_generated_tokens < n * (POOL - 100)


@pytest.mark.parametrize("streamed", [True, False])
async def test_who_leaves_the_queue_is_gone_before_its_turn(tmp_path: Path, streamed: bool) -> None:
    limits = Limits(max_batch_tokens=64, max_sequences=1)
    async with scripted_gateway(runner_of(before_step=slowly), tmp_path, limits=limits) as gateway:
        first = asyncio.create_task(gateway.ask(max_tokens=POOL - 100))
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await gateway.stats()).num_running:
                await asyncio.sleep(0.005)
            queued = asyncio.create_task(gateway.ask(30, first="q", stream=streamed))
            while not (await gateway.stats()).num_waiting:
                await asyncio.sleep(0.005)
            await hang_up(queued)
            while (now := await gateway.stats()).num_waiting:
                await asyncio.sleep(0.005)
        assert now.num_running == 1, "the one before it still runs"
        await hang_up(first)
        await gateway.until_idle()


@pytest.mark.parametrize("streamed", [True, False])
async def test_who_leaves_during_a_long_prompt_has_the_rest_of_it_not_computed(
    tmp_path: Path, streamed: bool
) -> None:
    brake = Brake(before_step=3)
    runner = runner_of(before_step=brake)
    limits = Limits(max_batch_tokens=64, max_sequences=8)
    async with scripted_gateway(runner, tmp_path, limits=limits) as gateway:
        asked = asyncio.create_task(gateway.ask(900, stream=streamed, max_tokens=50))
        await brake.until_it_holds()
        await hang_up(asked)
        await gateway.until_nobody_is_answered()
        brake.let_go()

        idle = await gateway.until_idle()
        metrics = (await gateway.client.get("/metrics")).text

    assert (runner.num_computed, idle.num_aborted) == (3 * 64, 1)
    assert 'stemma_generations_ended_total{outcome="aborted"} 1.0' in metrics


async def test_two_hundred_cancellations_at_any_moment_leak_nothing(tmp_path: Path) -> None:
    """Afterwards a request as large as the whole pool is served."""
    moments = random.Random(1)
    limits = Limits(max_batch_tokens=64, max_sequences=6)
    async with scripted_gateway(RememberingRunner(before_step=slowly), tmp_path, limits=limits) as gateway:
        before = await gateway.ask(200, max_tokens=8)

        async def cancelled(number: int) -> None:
            await asyncio.sleep(moments.uniform(0, 1))
            suffix = {"role": "user", "content": f"{number}"}
            request = saying(200, stream=bool(number % 3), n=1 + number % 2, max_tokens=50)
            request["messages"].append(suffix)
            asked = asyncio.create_task(gateway.client.post(CHAT, json=request))
            await asyncio.sleep(moments.uniform(0, 0.05))
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

        await asyncio.gather(*(cancelled(number) for number in range(200)))
        await gateway.until_nobody_is_answered()
        idle = await gateway.until_idle()
        after = await gateway.ask(200, max_tokens=8)
        whole_pool = await gateway.ask(POOL - 30, first="w")

    assert idle.num_aborted > 0
    assert after.json()["choices"] == before.json()["choices"]
    assert whole_pool.json()["usage"]["total_tokens"] == POOL


async def test_choices_of_one_stream_end_apart_and_each_is_whole(tmp_path: Path) -> None:
    texts = ["ax", "abcdefe", "no such letter", "e"]

    def script(sequence: Sequence) -> int:
        text = texts[sequence.choice]
        return ord(text[sequence.num_drawn]) if sequence.num_drawn < len(text) else 257

    async with scripted_gateway(runner_of(script), tmp_path) as gateway:
        events = await gateway.stream(n=4, stop="e", stream_options={"include_usage": True})
        whole = (await gateway.ask(n=4, stop="e")).json()
        await gateway.until_idle()

    told = [content_of(events, index) for index in range(4)]
    assert told == ["ax", "abcd", "no such l", ""]
    assert told == [choice["message"]["content"] for choice in whole["choices"]]
    assert [finish_of(events, index) for index in range(4)] == [["stop"]] * 4
    assert events[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 2 + 5 + 10 + 1


async def test_a_choice_that_a_stop_string_ended_is_not_run_on_beside_the_others(tmp_path: Path) -> None:
    def script(sequence: Sequence) -> int:
        return ord("e") if (sequence.choice, sequence.num_drawn) == (1, 3) else ord("a")

    async with scripted_gateway(runner_of(script, before_step=slowly), tmp_path) as gateway:
        events = await gateway.stream(n=3, stop="e", max_tokens=200)
        idle = await gateway.until_idle()

    assert [content_of(events, index) for index in range(3)] == ["a" * 200, "a" * 3, "a" * 200]
    assert [finish_of(events, index) for index in range(3)] == [["length"], ["stop"], ["length"]]
    assert idle.num_generated_tokens < 2 * 200 + 100


@pytest.mark.parametrize("n", [1, 3])
async def test_a_step_that_fails_in_the_middle_of_a_stream_is_one_error_and_frees_all(
    tmp_path: Path, n: int
) -> None:
    def fail_once(step: Step) -> None:
        if any(span.sequence.num_drawn == 3 and span.sequence.tokens[-1] == ord("f") for span in step.spans):
            raise RuntimeError("/srv/kernels/attention.py line 7")

    def script(sequence: Sequence) -> int:
        return ord("f") if sequence.sampling.seed == 1 else ord("g")

    async with scripted_gateway(runner_of(script, before_step=fail_once), tmp_path) as gateway:
        *chunks, error = await gateway.stream(n=n, seed=1, max_tokens=16)
        idle = await gateway.until_idle()
        following = await gateway.ask(seed=2, max_tokens=5)

    assert content_of(chunks) == "fff"
    assert [finish_of(chunks, index) for index in range(n)] == [[]] * n
    assert (error["error"]["code"], error["error"]["type"]) == ("internal_error", "server_error")
    assert "line 7" not in str(error)
    assert idle.num_held_blocks == 0
    assert following.json()["choices"][0]["message"]["content"] == "g" * 5


async def test_a_step_that_fails_is_a_500_without_a_trace_for_who_does_not_stream(tmp_path: Path) -> None:
    def fail(step: Step) -> None:
        raise RuntimeError("/srv/kernels/attention.py line 7")

    async with scripted_gateway(runner_of(before_step=fail), tmp_path) as gateway:
        error = error_of(await gateway.ask(), 500)
        await gateway.until_idle()

    assert error["code"] == "internal_error"
    assert "line 7" not in error["message"]


async def test_an_answer_of_blanks_and_split_characters_is_the_same_streamed_or_not(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    pieces = (" ", " x", b"\xf0\x9f", b"\x8d", b"\x95", "\n", b"\xe6\x98", b"\xaf", b"\xf0\x9f")
    script = emit([tokenizer.id_of(piece) for piece in pieces], then=257)
    async with scripted_gateway(runner_of(script), tmp_path, tokenizer=tokenizer) as gateway:
        for max_tokens in range(1, 11):
            events = await gateway.stream(max_tokens=max_tokens)
            whole = (await gateway.ask(max_tokens=max_tokens)).json()["choices"][0]

            assert content_of(events) == whole["message"]["content"]
            assert finish_of(events) == [whole["finish_reason"]]
            assert not any("\ufffd" in choice["delta"].get("content", "") for choice in choices_of(events))
    assert whole["message"]["content"] == "  x🍕\n是"


async def test_each_of_a_mixed_batch_gets_the_logprobs_that_it_asked_for(tmp_path: Path) -> None:
    brake = Brake(before_step=2)
    async with scripted_gateway(runner_of(before_step=brake), tmp_path) as gateway:
        asked = [{}, {"logprobs": True}, *({"logprobs": True, "top_logprobs": k} for k in (0, 1, 5, 20))]
        answers = [asyncio.create_task(gateway.ask(max_tokens=6, **fields)) for fields in asked]
        await brake.until_it_holds()
        brake.let_go()
        choices = [(await answer).json()["choices"][0] for answer in answers]

    assert choices[0]["logprobs"] is None
    counts = [
        {len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]} for choice in choices[1:]
    ]
    assert counts == [{0}, {0}, {1}, {5}, {20}]
    assert {len(choice["logprobs"]["content"]) for choice in choices[1:]} == {6}
