"""A script's answers by the default model: text in, text out, and an engine that is left as it was found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.offline import LLM, BeamSearchParams, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=1)


@pytest.fixture(scope="module")
def llm(default_model_path: Path) -> Iterator[LLM]:
    with LLM(
        str(default_model_path), dtype="float32", max_model_len=256, kv_bytes=1 << 25, num_threads=1
    ) as made:
        yield made


def test_a_conversation_is_answered(llm: LLM) -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]

    (told,) = llm.chat(asked, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)

    assert told.outputs[0].text == "The capital of France is Paris."
    assert (told.outputs[0].finish_reason, told.outputs[0].stop_reason) == ("stop", None)


def test_company_changes_no_greedy_answer_and_the_second_time_is_cached(llm: LLM) -> None:
    prompts = ["One, two, three,", "The capital of France is", "Once upon a time"]
    alone = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in prompts]

    together = llm.generate(prompts, GREEDY, use_tqdm=False)

    assert [each.outputs[0].token_ids for each in together] == [each.outputs[0].token_ids for each in alone]
    assert all(each.num_cached_tokens > 0 for each in together)


def test_a_prompts_own_tokens_are_weighed_as_answers_are(llm: LLM) -> None:
    (told,) = llm.generate("One, two, three,", GREEDY, use_tqdm=False)
    ids = [*told.prompt_token_ids, *told.outputs[0].token_ids]

    (again,) = llm.generate(
        {"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False
    )

    drawn = [
        each[token]
        for each, token in zip(told.outputs[0].logprobs or (), told.outputs[0].token_ids, strict=True)
    ]
    values = (again.prompt_logprobs or [])[len(told.prompt_token_ids) :]
    weighed = [(each or {})[token] for each, token in zip(values, told.outputs[0].token_ids, strict=True)]
    assert [each.logprob for each in weighed] == pytest.approx([each.logprob for each in drawn], abs=1e-3)
    assert [each.rank for each in weighed] == [each.rank for each in drawn]


def test_the_narrowest_search_is_greedy_and_a_wider_one_tells_the_best_first(llm: LLM) -> None:
    prompt = "The capital of France is"
    (greedy,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)

    (narrow,) = llm.beam_search(prompt, BeamSearchParams(beam_width=1, max_tokens=6))
    (wide,) = llm.beam_search(prompt, BeamSearchParams(beam_width=4, max_tokens=6, length_penalty=0.0))

    assert narrow.sequences[0].tokens == [*greedy.prompt_token_ids, *greedy.outputs[0].token_ids]
    assert narrow.sequences[0].text == prompt + greedy.outputs[0].text
    scores = [each.cum_logprob for each in wide.sequences]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
