"""The runner: the default model answers, whole or in parts, alone or among strangers."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.loading import load_runner
from engine.messages import EngineConfig
from engine.runner import ModelRunner
from engine.step import Draw, Span, Step, StepResult
from prefix_cache.plan import BlockCopy, BlockId, Tier
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.paged import make_sequence

# The template's default system line, then: What is the capital of France?
PROMPT = [
    1,
    9690,
    198,
    2683,
    359,
    253,
    5356,
    5646,
    11173,
    3365,
    3511,
    308,
    34519,
    28,
    7018,
    411,
    407,
    19712,
    8182,
    2,
    198,
    1,
    4093,
    198,
    1780,
    314,
    260,
    3575,
    282,
    4649,
    47,
    2,
    198,
    1,
    520,
    9531,
    198,
]
# The capital of France is Paris.<|im_end|>
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]
END = 2


@pytest.fixture(scope="module")
def runner(default_model_path: Path) -> ModelRunner:
    return load_runner(EngineConfig(model=str(default_model_path), dtype="float32", kv_bytes=1 << 26))


def test_bfloat16_weighs_tokens_nearly_as_float32_does(runner: ModelRunner, default_model_path: Path) -> None:
    """Which of two tokens that are close is drawn, the processor's way of rounding decides; not their
    chances.
    """
    rounded = load_runner(EngineConfig(model=str(default_model_path), kv_bytes=1 << 26))

    def best(of: ModelRunner) -> dict[int, float]:
        sequence = make_sequence([*PROMPT, *ANSWER[:3]], [0, 1, 2])
        sequence.sampling = replace(sequence.sampling, logprobs=5)
        (draw,) = drawn(of.run(Step((Span(sequence, 0, sequence.num_tokens),))))
        return dict(draw.top)

    exact, near = best(runner), best(rounded)
    assert max(exact, key=exact.__getitem__) == max(near, key=near.__getitem__) == ANSWER[3]
    assert near[ANSWER[3]] == pytest.approx(exact[ANSWER[3]], abs=0.1)


def drawn(result: StepResult) -> list[Draw]:
    """What the spans of a step drew, in their order."""
    return [draw for span in result.spans for draw in span.draws]


def _answer(runner: ModelRunner, chunk: int, blocks: list[int]) -> list[int]:
    sequence = make_sequence(PROMPT, blocks)
    start = 0
    while True:
        end = min(start + chunk, sequence.num_tokens)
        draws = drawn(runner.run(Step((Span(sequence, start, end),))))
        start = end
        if draws:
            sequence.tokens.append(draws[0].token_id)
        if len(sequence.tokens) == len(PROMPT) + 12 or sequence.tokens[-1] == END:
            return sequence.tokens[len(PROMPT) :].tolist()


@pytest.mark.parametrize("chunk", [256, 7])
def test_the_capital_of_france_is_paris(runner: ModelRunner, chunk: int) -> None:
    assert _answer(runner, chunk, [9, 2, 5, 7]) == ANSWER


def test_strangers_in_the_step_do_not_change_the_answer(runner: ModelRunner) -> None:
    asked = make_sequence(PROMPT, [0, 1, 2])
    stranger = make_sequence(list(range(100, 160)), [3, 4, 5, 6])

    draws = drawn(runner.run(Step((Span(stranger, 0, 60), Span(asked, 0, len(PROMPT))))))

    assert draws[1].token_id == ANSWER[0]


def test_a_span_that_does_not_end_its_sequence_draws_nothing(runner: ModelRunner) -> None:
    asked, stranger = make_sequence(PROMPT, [0, 1, 2]), make_sequence(list(range(100, 160)), [3, 4, 5, 6])

    draws = drawn(runner.run(Step((Span(stranger, 0, 59), Span(asked, 0, len(PROMPT))))))

    assert [draw.token_id for draw in draws] == ANSWER[:1]


def _last_logprob(runner: ModelRunner, blocks: list[int], copies: tuple[BlockCopy, ...] = ()) -> float | None:
    """Compute the prompt's last token over what lies in the blocks."""
    sequence = make_sequence(PROMPT, blocks)
    sequence.sampling = replace(sequence.sampling, logprobs=0)
    span = Span(sequence, len(PROMPT) - 1, len(PROMPT))
    return drawn(runner.run(Step((span,), copies)))[0].logprob


def test_copies_run_before_the_spans_of_their_step(runner: ModelRunner) -> None:
    whole, stranger = make_sequence(PROMPT, [0, 1, 2]), make_sequence(list(range(100, 116)), [8])
    runner.run(Step((Span(whole, 0, len(PROMPT)), Span(stranger, 0, 16))))
    expected = _last_logprob(runner, [0, 1, 2])
    assert _last_logprob(runner, [0, 8, 2]) != expected

    copy = BlockCopy(Tier.DEVICE, BlockId(1), Tier.DEVICE, BlockId(8), 16)

    assert _last_logprob(runner, [0, 8, 2], (copy,)) == expected


def test_a_step_of_copies_alone_draws_nothing(runner: ModelRunner) -> None:
    copy = BlockCopy(Tier.DEVICE, BlockId(0), Tier.DEVICE, BlockId(1), 16)

    assert runner.run(Step((), (copy,))) == StepResult(())


def _weighed(runner: ModelRunner, chunk: int) -> list[tuple[int, float | None]]:
    """What each token of a prompt is worth, computed in pieces beside a stranger."""
    tokens = [(5 * place + 3) % 101 for place in range(150)]
    told: list[tuple[int, float | None]] = []
    for start in range(0, len(tokens), chunk):
        asked, stranger = make_sequence(tokens, [*range(10)]), make_sequence([1, 2, 3], [10])
        asked.sampling = replace(asked.sampling, prompt_logprobs=0)
        span = Span(asked, start, min(start + chunk, len(tokens)))
        _, result = runner.run(Step((Span(stranger, 0, 3), span))).spans
        told += [(draw.token_id, draw.logprob) for draw in result.prompt_logprobs]
    assert [token_id for token_id, _ in told] == tokens[1:]
    return told


def test_a_prompt_is_weighed_alike_whole_and_in_parts(tmp_path: Path) -> None:
    folder = write_checkpoint(random_model("llama"), tmp_path)
    runner = load_runner(EngineConfig(model=str(folder), dtype="float32", kv_bytes=1_000_000))

    whole = [logprob for _, logprob in _weighed(runner, 150)]

    assert whole == pytest.approx([logprob for _, logprob in _weighed(runner, 40)], abs=1e-4)


def test_the_pool_fits_the_bytes_that_were_given(tmp_path: Path) -> None:
    folder = write_checkpoint(random_model("llama"), tmp_path)

    info = load_runner(EngineConfig(model=str(folder), kv_bytes=100_000, max_context=64)).info

    assert info.kv_bytes <= 100_000 < info.kv_bytes + info.kv_bytes // info.num_blocks
    assert (info.context_length, info.vocab_size, info.dtype) == (64, 101, "bfloat16")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_bytes": 100}, "one block takes"),
        ({"kv_bytes": 1 << 60}, "lower it"),
        ({"block_size": 8}, "multiple of 16"),
        ({"max_context": 1 << 20}, "more than"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(
    change: dict[str, int], reason: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(random_model("llama"), tmp_path)

    with pytest.raises(ValueError, match=reason):
        load_runner(EngineConfig(**({"model": str(folder), "kv_bytes": 100_000} | change)))
