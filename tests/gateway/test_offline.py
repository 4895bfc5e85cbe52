"""Answers for scripts: what is asked for, what comes back, and what is left when a run ends early."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError
from engine.messages import Abort, Refused
from engine.sequence import BeamParams
from gateway.offline import LLM, BeamSearchParams, Logprob, SamplingParams
from tests.fakes import ByteTokenizer
from tests.gateway.scripted_core import ScriptedCore
from tests.gateway.stored import fresh_prompts


def llm(core: ScriptedCore, tokenizer: ByteTokenizer | None = None, **fields: Any) -> LLM:
    return LLM.over(core, fresh_prompts(tokenizer or ByteTokenizer()), **fields)


def texts(outputs: list[Any]) -> list[list[str]]:
    return [[each.text for each in output.outputs] for output in outputs]


def test_answers_come_in_the_order_of_the_prompts() -> None:
    core = ScriptedCore(["aaaa", "b", "cc"])

    told = llm(core).generate(["x", {"prompt": "yy"}, {"prompt_token_ids": [1, 2, 3]}], use_tqdm=False)

    assert texts(told) == [["aaaa"], ["b"], ["cc"]]
    assert [each.prompt for each in told] == ["x", "yy", None]
    assert [each.prompt_token_ids for each in told] == [[120], [121, 121], [1, 2, 3]]
    assert [each.num_cached_tokens for each in told] == [3, 3, 3]
    assert all(each.finished for each in told)
    assert core.num_steps == 5, "they run together"


def test_one_prompt_needs_no_list() -> None:
    assert texts(llm(ScriptedCore(["a"])).generate("x", use_tqdm=False)) == [["a"]]
    assert llm(ScriptedCore(["a"])).generate([], use_tqdm=False) == []


def test_parameters_are_one_for_all_or_one_each() -> None:
    core = ScriptedCore(["abcdef"])
    each = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3, n=2)]

    told = llm(core).generate(["x", "y"], each, use_tqdm=False)

    assert texts(told) == [["a"], ["abc", "abc"]]
    assert [output.outputs[0].finish_reason for output in told] == ["length", "length"]
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        llm(core).generate("x", each, use_tqdm=False)


def test_every_parameter_reaches_the_engine() -> None:
    core = ScriptedCore(["a"])
    params = SamplingParams(
        presence_penalty=0.5, frequency_penalty=-1, repetition_penalty=2, temperature=0.5, top_p=0.5,
        top_k=9999, min_p=0.25, seed=-1, stop_token_ids=[5, 257], max_tokens=None, min_tokens=2, logprobs=3,
        prompt_logprobs=0, logit_bias={7: -2.0},
    )  # fmt: skip

    llm(core).generate("xyz", params, use_tqdm=False)

    sampling = core.submits[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        0.5,
        -1,
        2,
    )
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.5, 1024, 0.25)
    assert (sampling.seed, sampling.stop_token_ids) == (2**64 - 1, (257, 5))
    assert (sampling.max_tokens, sampling.min_tokens) == (4093, 2)
    assert (sampling.logprobs, sampling.prompt_logprobs, sampling.logit_bias) == (3, 0, {7: -2.0})


def test_the_models_own_ends_may_be_ignored() -> None:
    core = ScriptedCore(["a"])
    llm(core).generate("x", SamplingParams(ignore_eos=True, stop_token_ids=[9]), use_tqdm=False)

    assert core.submits[0].sampling.stop_token_ids == (9,)


def test_a_seed_of_the_whole_fixes_the_seeds_of_requests() -> None:
    drawn = []
    for seed in (5, 5, 6, None, None):
        core = ScriptedCore(["a"])
        llm(core, seed=seed).generate(["x", "y"], use_tqdm=False)
        drawn.append([submit.sampling.seed for submit in core.submits])

    assert drawn[0] == drawn[1]
    assert len({tuple(seeds) for seeds in drawn}) == 4
    assert all(first != second for first, second in drawn)


def test_a_stop_string_ends_one_choice_and_the_rest_goes_on() -> None:
    core = ScriptedCore(["abcdef", "abxyz"])

    (told,) = llm(core).generate("q", SamplingParams(n=2, stop="bc", max_tokens=9), use_tqdm=False)

    assert [each.text for each in told.outputs] == ["a", "abxyz"]
    assert [each.stop_reason for each in told.outputs] == ["bc", None]
    assert [each.token_ids for each in told.outputs] == [list(b"abc"), list(b"abxyz")]
    assert Abort(request_id=core.submits[0].request_id, choice=0) in core.aborts


def test_why_an_answer_stopped_is_told_for_what_was_asked_for_only() -> None:
    core = ScriptedCore(["a"])

    own = llm(core).generate("x", use_tqdm=False)[0].outputs[0]
    asked = llm(core).generate("x", SamplingParams(stop_token_ids=[257]), use_tqdm=False)[0].outputs[0]

    assert (own.finish_reason, own.stop_reason) == ("stop", None)
    assert (asked.finish_reason, asked.stop_reason) == ("stop", 257)


def test_log_probabilities_are_by_token_ids() -> None:
    params = SamplingParams(logprobs=2, prompt_logprobs=1)

    (told,) = llm(ScriptedCore(["ab"])).generate("xy", params, use_tqdm=False)

    answer = told.outputs[0]
    assert answer.cumulative_logprob == -1.0
    assert answer.logprobs is not None
    assert answer.logprobs[0] == {97: Logprob(-0.5, 1, "a"), 98: Logprob(-1.5, 2, "b")}
    assert len(answer.logprobs) == 2
    assert told.prompt_logprobs == [None, {121: Logprob(-0.5, 1, "y")}]


def test_unasked_log_probabilities_are_none() -> None:
    (told,) = llm(ScriptedCore(["ab"])).generate("xy", use_tqdm=False)

    assert (told.prompt_logprobs, told.outputs[0].logprobs, told.outputs[0].cumulative_logprob) == (None,) * 3


def test_an_empty_answer_has_no_log_probabilities_but_a_list() -> None:
    (told,) = llm(ScriptedCore([""])).generate("x", SamplingParams(logprobs=0), use_tqdm=False)

    assert (told.outputs[0].text, told.outputs[0].logprobs) == ("", [])


def test_a_conversation_is_rendered_and_its_answer_is_remembered() -> None:
    tokenizer = ByteTokenizer()
    word = tokenizer.id_of("fine")  # what the model draws as one token is encoded as four
    offline = llm(ScriptedCore([chr(word)]), tokenizer)
    first = [{"role": "user", "content": "hi"}]

    (told,) = offline.chat(first, use_tqdm=False)
    again = [*first, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "and?"}]
    (next_told,) = offline.chat(again, use_tqdm=False)

    assert told.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert told.outputs[0].text == "fine"
    spoken = [*told.prompt_token_ids, word]
    assert next_told.prompt_token_ids[: len(spoken)] == spoken


def test_several_conversations_are_several_prompts() -> None:
    one, other = [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]

    assert len(llm(ScriptedCore(["x"])).chat([one, other], use_tqdm=False)) == 2


def test_a_message_may_be_continued() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "so"}]

    (told,) = llm(ScriptedCore(["x"])).chat(messages, use_tqdm=False, continue_final_message=True)

    assert (told.prompt or "").endswith("assistant\nso")


def test_a_search_tells_its_hypotheses_with_the_prompt() -> None:
    core = ScriptedCore(["best", "next"])
    params = BeamSearchParams(beam_width=2, max_tokens=8, length_penalty=0.5, early_stopping="never")

    text, ids = llm(core).beam_search(["Q:", {"prompt_token_ids": [81]}], params)

    assert [each.text for each in text.sequences] == ["Q:best", "Q:next"]
    assert text.sequences[0].tokens == list(b"Q:best")
    assert text.sequences[0].cum_logprob == -2.0
    assert ids.sequences[0].text.startswith("Q")
    sampling = core.submits[0].sampling
    assert sampling.beam == BeamParams(width=2, length_penalty=0.5, early_stopping="never")
    assert core.submits[0].num_choices == 2


@pytest.mark.parametrize(
    "prompts",
    ["", ["a", ""], {"prompt_token_ids": []}, {"prompt_token_ids": [1024]}, {"prompt_token_ids": [-1]},
     {"prompt_token_ids": [True]}, {"prompt_token_ids": [1.5]}, {}, {"prompt": None}, ["a", {"text": "b"}],
     {"prompt_token_ids": [1] * 4096}, "x" * 5000, [1, 2, 3], [None]],
    ids=lambda prompts: repr(prompts)[:30],
)  # fmt: skip
def test_a_prompt_that_cannot_run_is_refused_before_anything_runs(prompts: Any) -> None:
    core = ScriptedCore(["a"])

    with pytest.raises(ValueError, match=r"prompt"):
        llm(core).generate(prompts, use_tqdm=False)

    assert core.submits == []


@pytest.mark.parametrize(
    "fields",
    [{"n": 0}, {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_k": -2}, {"min_p": 2},
     {"max_tokens": 0}, {"min_tokens": 17}, {"stop": ""}, {"stop": ["a", ""]}, {"logprobs": 21},
     {"prompt_logprobs": -1}, {"presence_penalty": 3}, {"repetition_penalty": 0}, {"logit_bias": {5: 101}},
     {"logit_bias": {5: 1.0, 6: float("nan")}}],
    ids=str,
)  # fmt: skip
def test_a_parameter_out_of_range_is_refused_where_it_is_written(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    "fields", [{"beam_width": 0}, {"beam_width": 17}, {"max_tokens": 0}, {"length_penalty": 11},
               {"early_stopping": "always"}], ids=str,
)  # fmt: skip
def test_a_search_out_of_range_is_refused_where_it_is_written(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **fields})


def test_what_the_engine_refuses_ends_all_before_anything_runs() -> None:
    core = ScriptedCore(["a"], refusals={1: Refused("1", "larger than the pool", "refused")})

    with pytest.raises(ValueError, match="larger than the pool"):
        llm(core).generate(["x", "y", "z"], use_tqdm=False)

    assert (core.num_steps, core.num_running) == (0, 0)


def test_a_step_that_fails_is_an_error_and_leaves_nothing() -> None:
    core = ScriptedCore(["abc"], failure=Refused("0", "device lost", "failed"))

    with pytest.raises(EngineError, match="device lost"):
        llm(core).generate(["x", "y"], use_tqdm=False)

    assert core.num_running == 0


def test_an_interrupt_is_heeded_between_steps_and_leaves_nothing() -> None:
    core = ScriptedCore(["a" * 4000])
    finished = []

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        finished.append(core.num_steps)  # the step itself goes on to its end

    core.before_step = interrupt
    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        llm(core).generate(["x", "y"], SamplingParams(max_tokens=4000), use_tqdm=False)

    assert (finished, core.num_steps, core.num_running) == ([0], 1, 0)
    assert signal.getsignal(signal.SIGINT) is before
    core.before_step = lambda: None
    assert texts(llm(core).generate("x", SamplingParams(max_tokens=2), use_tqdm=False)) == [["aa"]]


def test_progress_is_shown_unless_it_is_not_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    llm(ScriptedCore(["a"])).generate(["x", "y"])
    assert "2/2" in capfd.readouterr().err

    llm(ScriptedCore(["a"])).generate(["x", "y"], use_tqdm=False)
    assert capfd.readouterr().err == ""


def test_who_leaves_the_block_has_let_go_of_the_engine() -> None:
    core = ScriptedCore(["a"])

    with llm(core) as offline:
        offline.generate("x", use_tqdm=False)
        assert not core.is_closed
    offline.close()

    assert core.is_closed
    with pytest.raises(ValueError, match="closed"):
        offline.generate("x", use_tqdm=False)


def test_it_needs_no_web_stack() -> None:
    unwanted = ("starlette", "uvicorn", "sqlalchemy", "pydantic", "sse_starlette", "zmq", "structlog")
    program = f"import sys, gateway.offline; print([name for name in {unwanted} if name in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert loaded.stdout == "[]\n"


@pytest.mark.parametrize(
    "values",
    [
        {"n": True},
        {"n": 1.5},
        {"max_tokens": 2.5},
        {"seed": 1 << 70},
        {"seed": "x"},
        {"temperature": "1"},
        {"top_p": None},
        {"stop": 5},
        {"stop": ["a", 5]},
    ],
)
def test_parameters_of_a_wrong_type_are_refused_where_they_are_written(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        SamplingParams(**values)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tensor_parallel_size": 1}, "tensor_parallel_size"),
        ({"dtype": "x"}, "dtype"),
        ({"kv_bytes": "many"}, "kv_bytes"),
    ],
)
def test_options_are_checked_before_anything_is_fetched(
    options: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=reason):
        LLM(**options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prompts", [None, 5, [None], [5], {"prompt_token_ids": 5}, {"prompt": 5}], ids=repr)
def test_what_is_no_prompt_is_refused_before_anything_runs(prompts: Any) -> None:
    core = ScriptedCore(["a"])

    with pytest.raises(ValueError, match="prompt"):
        llm(core).generate(prompts, use_tqdm=False)

    assert core.submits == []


def test_parameters_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="SamplingParams"):
        llm(ScriptedCore(["a"])).generate("x", 5, use_tqdm=False)
