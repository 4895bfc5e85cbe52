"""The comparison of products: what it says of a text is what the model says, and its figures are known."""

from array import array
from math import exp, log
from pathlib import Path

import pytest

from benchmarks.quality import (
    MODES,
    STEP_SIZES,
    Cost,
    Quality,
    main,
    measure_cost,
    read_windows,
    suits,
    table,
    weigh,
)
from engine.loading import load_runner
from tests.engine.checkpoints import random_model, transformers_logits, write_checkpoint


def test_a_text_is_weighed_as_transformers_weighs_it(tmp_path: Path) -> None:
    model = random_model("llama")
    windows = [list(range(3, 60)), [7, 9], list(range(100, 1, -3))]
    expected: list[float] = []
    likeliest: list[int] = []
    for window in windows:
        logprobs = transformers_logits(model, window).log_softmax(-1)[:-1]
        expected += logprobs[range(len(window) - 1), window[1:]].tolist()
        likeliest += logprobs.argmax(-1).tolist()
    runner = load_runner(MODES[0].config(write_checkpoint(model, tmp_path), deterministic=True))
    done: list[int] = []

    found = weigh(runner, [array("i", window).tobytes() for window in windows], lambda: done.append(1))

    assert found.logprobs == pytest.approx(expected, abs=1e-4)
    assert found.likeliest == likeliest
    assert len(done) == 3
    assert found.perplexity == pytest.approx(exp(-sum(expected) / len(expected)), rel=1e-4)


def test_perplexity_and_agreement_are_the_known_ones() -> None:
    quality = Quality([log(0.5), log(0.125)], [3, 4])

    assert quality.perplexity == pytest.approx(4.0)
    assert quality.agreement(Quality([0.0, 0.0], [3, 5])) == 0.5
    assert quality.agreement(quality) == 1.0


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_mode_is_measured(mode: object, tmp_path: Path) -> None:
    cost = measure_cost(mode, write_checkpoint(random_model("llama", hidden_size=64, head_dim=32), tmp_path))

    assert cost.seconds.keys() == set(STEP_SIZES)
    assert all(seconds > 0 for seconds in cost.seconds.values())


@pytest.mark.parametrize(("head_dim", "num_modes"), [(32, len(MODES)), (16, len(MODES) - 1)])
def test_heads_that_cannot_be_kept_in_8_bits_are_left_out(
    head_dim: int, num_modes: int, tmp_path: Path
) -> None:
    model = write_checkpoint(random_model("llama", hidden_size=64, head_dim=head_dim), tmp_path)

    assert sum(suits(mode, model) for mode in MODES) == num_modes


def test_the_table_compares_with_bfloat16() -> None:
    qualities = [Quality([log(1 / value)], [1]) for value in (19.0, 20.0, 20.0, 20.0, 25.0)]
    costs = [Cost(300_000_000, dict.fromkeys(STEP_SIZES, 0.064))] * 5

    lines = table(MODES, qualities, costs).splitlines()

    assert lines[5].split() == "bfloat16, packed 25.000 1.2500 100.00% 300 64.00 8.00 2.00 0.25".split()


def test_a_text_is_cut_into_windows_and_a_lonely_token_is_dropped(default_model_path: Path) -> None:
    windows = read_windows(default_model_path, "one two three four five six", num_tokens=5, window=2)

    assert [len(window) for window in windows] == [8, 8]


def test_a_text_that_is_too_short_is_refused(default_model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("a")

    with pytest.raises(SystemExit, match="too short"):
        main(["--model", str(default_model_path), "--data", str(path)])
