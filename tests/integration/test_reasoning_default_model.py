"""Reasoning with the default model, of whose unused tokens two are renamed to marks. It has not learned to
close what its prompt opens: a budget does.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.served import stemma_serve

ASKED: Any = [{"role": "user", "content": "Count from one to ten, again and again."}]
# of equal lengths, for a file's strings have theirs written before them
RENAMED = {
    b"<file_sep>": b"<thinking>",
    b"<repo_name>": b"</thinking>",
    b"named SmolLM, trained by Hugging Face": b"named SmolLM, of Hugging Fa",
    b"assistant\n' }}": b"assistant\n<thinking>' }}",
}


@pytest.fixture(scope="module")
def thinking(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("thinking")
    data = default_model_path.read_bytes()
    renamed = data
    for old, new in RENAMED.items():
        assert renamed.count(old) == 1
        renamed = renamed.replace(old, new)
    assert len(renamed) == len(data)
    model = folder / "thinking.gguf"
    model.write_bytes(renamed)
    # what is proposed from the answer's own repetitions is held to the budget too
    settings = {"STEMMA_ENGINE__KV_BYTES": "256MiB", "STEMMA_ENGINE__SPECULATION": "ngram"}
    with (
        stemma_serve(model, folder, **settings) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


def ask(client: OpenAI, messages: Any = ASKED, *, stream: bool = False, **extra: Any) -> Any:
    return client.chat.completions.create(
        model="default", messages=messages, temperature=0, max_tokens=60, stream=stream, extra_body=extra
    )


@pytest.mark.parametrize("budget", [0, 1, 30])
def test_reasoning_ends_at_its_budget_and_the_answer_goes_on(thinking: OpenAI, budget: int) -> None:
    answer = ask(thinking, thinking_token_budget=budget, regex="[a-f]{4} (yes|no)")

    message = answer.choices[0].message
    assert answer.usage.completion_tokens_details.reasoning_tokens == budget + 1  # and the mark
    assert re.fullmatch("[a-f]{4} (yes|no)", message.content)
    assert len(message.model_extra.get("reasoning_content", "")) >= 40 * (budget == 30)


def test_without_a_form_the_answer_goes_on_too(thinking: OpenAI) -> None:
    answer = ask(thinking, thinking_token_budget=9)

    assert answer.usage.completion_tokens_details.reasoning_tokens == 10
    assert "thinking>" not in answer.choices[0].message.content


def test_without_a_budget_it_reasons_for_as_long_as_it_may(thinking: OpenAI) -> None:
    answer = ask(thinking, ignore_eos=True)

    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == ""
    assert answer.usage.completion_tokens_details.reasoning_tokens == 60


def test_a_stream_says_what_a_whole_answer_says(thinking: OpenAI) -> None:
    fields: dict[str, Any] = {"thinking_token_budget": 12, "regex": "[a-f]{4} (yes|no)"}

    whole = ask(thinking, **fields).choices[0].message
    deltas = [chunk.choices[0].delta for chunk in ask(thinking, stream=True, **fields) if chunk.choices]

    assert "".join(delta.content or "" for delta in deltas) == whole.content
    told = "".join(delta.model_extra.get("reasoning_content", "") for delta in deltas)
    assert told == whole.model_extra["reasoning_content"]


def test_reasoning_that_a_template_leaves_out_costs_no_more_of_the_cache_than_the_last_answer(
    thinking: OpenAI,
) -> None:
    messages, before = [*ASKED], 0
    for question in ("And now backwards.", "Once more.", "Thank you."):
        fields: Any = {"thinking_token_budget": 12, "regex": "[a-f]{4} (yes|no)"}
        answer = ask(thinking, messages, **fields)
        apart = ask(thinking, messages, cache_salt=question, **fields)

        # what was asked before stays, but for the mark that opened the last answer's reasoning
        assert answer.usage.prompt_tokens_details.cached_tokens >= before - 1
        content = answer.choices[0].message.content
        assert apart.choices[0].message.content == content
        before = answer.usage.prompt_tokens
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": question}]
