"""The default model behind `stemma serve`, through the real SDK."""

import re
import sqlite3
import time

import httpx
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.served import ServedModel

PARIS: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def counter(served: ServedModel, name: str) -> float:
    """One of the engine's own counters."""
    found = re.search(rf"^stemma_{name}_total (\S+)$", httpx.get(f"{served.url}/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_paris(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(model="default", messages=PARIS, temperature=0)

    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_says_the_same(openai: OpenAI) -> None:
    chunks = openai.chat.completions.create(model="default", messages=PARIS, temperature=0, stream=True)

    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is Paris."
    )


def test_the_second_turn_finds_the_first_in_the_cache_and_the_engine_agrees(
    openai: OpenAI, live_server: ServedModel
) -> None:
    question = "Tell me three things about the river that flows through Paris."
    turns: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    first = openai.chat.completions.create(model="default", messages=turns, temperature=0, max_tokens=80)
    assert first.usage is not None
    turns += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And one more?"},
    ]
    before = counter(live_server, "computed_prompt_tokens")

    second = openai.chat.completions.create(model="default", messages=turns, temperature=0, max_tokens=8)

    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= first.usage.total_tokens - 1
    computed = counter(live_server, "computed_prompt_tokens") - before
    assert computed == second.usage.prompt_tokens - cached


def test_a_seed_repeats_the_answers_and_choices_differ(openai: OpenAI) -> None:
    def draw() -> list[str | None]:
        answer = openai.chat.completions.create(
            model="default", messages=PARIS, n=4, seed=1, max_tokens=24, stop="e", temperature=1
        )
        assert answer.usage is not None
        return [choice.message.content for choice in answer.choices]

    once = draw()

    assert once == draw()
    assert len(set(once)) > 1


def test_a_client_that_leaves_frees_the_engine(openai: OpenAI, live_server: ServedModel) -> None:
    before = counter(live_server, "sequences_aborted")
    stream = openai.chat.completions.create(
        model="default", messages=PARIS, n=2, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()

    deadline = time.monotonic() + 20
    while counter(live_server, "sequences_aborted") < before + 2:
        assert time.monotonic() < deadline, "the sequences run on"
        time.sleep(0.1)
    assert "stemma_num_requests_running 0.0" in httpx.get(f"{live_server.url}/metrics").text


def test_usage_is_written(openai: OpenAI, live_server: ServedModel) -> None:
    answer = openai.chat.completions.create(model="default", messages=PARIS, max_tokens=3)

    connection = sqlite3.connect(live_server.data / "stemma.sqlite3")
    deadline = time.monotonic() + 10
    rows: list[tuple[int]] = []
    while not rows and time.monotonic() < deadline:
        time.sleep(0.1)
        query = "select completion_tokens from usage where completion_id = ?"
        rows = connection.execute(query, (answer.id,)).fetchall()
    connection.close()
    assert rows == [(3,)]
