"""Draws against plain definitions: what may be drawn, how often, and what it depends on."""

from array import array
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.filters import keep_best
from engine.sampling.host_sampler import HostSampler
from engine.sampling.randomness import uniform
from engine.sampling.rows import Row
from engine.sequence import SamplingParams, Sequence
from engine.step import Draw
from kernels import Kernels

VOCABULARY = 1000
Sample = Callable[[torch.Tensor, list[Row]], list[Draw]]


@pytest.fixture(params=["host", "device"])
def sample(request: pytest.FixtureRequest) -> Sample:
    """Both samplers do what is asked. Triton's kernels have tests of their own."""
    operations = Kernels.reference().sampling
    assert operations is not None
    sampler = HostSampler() if request.param == "host" else DeviceSampler(operations, VOCABULARY)
    return lambda logits, rows: sampler.sample(logits, rows).draws


def sequence(prompt: tuple[int, ...] = (1,), drawn: tuple[int, ...] = (), choice: int = 0, **sampling) -> Row:
    params = SamplingParams(**{"max_tokens": 100, **sampling})
    return Row(Sequence("r", choice, array("i", (*prompt, *drawn)), len(prompt), params, b""))


def logits(rows: int = 1, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def plainly_kept(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The filters as sentences: sort, cut at k, cut at the mass p of those, cut below a share of the best."""
    order = row.double().argsort(descending=True, stable=True).tolist()[:top_k]
    total = sum(row[i].item() for i in order)
    kept, mass = set(), 0.0
    for token_id in order:
        if mass >= top_p * total:
            break
        mass += row[token_id].item()
        if row[token_id] >= min_p * row[order[0]]:
            kept.add(token_id)
    return kept


def kept_by(probabilities: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    candidates = keep_best(
        probabilities[None],
        torch.tensor([top_k]),
        torch.tensor([top_p], dtype=torch.float64),
        torch.tensor([min_p], dtype=torch.float64),
    )
    return set(candidates.token_ids[0][candidates.weights[0] > 0].tolist())


@given(
    seed=st.integers(0, 50),
    spread=st.sampled_from([0.05, 1.0, 4.0]),
    top_k=st.sampled_from([1, 5, 511, 513, VOCABULARY]),
    top_p=st.sampled_from([0.001, 0.3, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_filters_keep_what_their_definition_keeps(seed, spread, top_k, top_p, min_p) -> None:
    """Also where more tokens must be sorted than the first few hundred; one token at the edge may round
    away.
    """
    probabilities = torch.softmax(logits(seed=seed, spread=spread)[0], dim=-1)

    difference = kept_by(probabilities, top_k, top_p, min_p) ^ plainly_kept(
        probabilities, top_k, top_p, min_p
    )

    assert len(difference) <= 1


def test_greedy_takes_the_best(sample: Sample) -> None:
    values = logits(rows=3)
    best = values.argmax(-1).tolist()

    draws = sample(values.clone(), [sequence(temperature=0.0) for _ in best])

    assert [draw.token_id for draw in draws] == best


def test_top_k_of_one_is_greedy_at_any_temperature(sample: Sample) -> None:
    values = logits()

    draw = sample(values.clone(), [sequence(temperature=2.0, top_k=1, seed=5)])[0]

    assert draw.token_id == int(values.argmax())


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.95}, {"top_k": 4}, {"min_p": 0.05}])
def test_draws_follow_the_distribution(sample: Sample, filters: dict) -> None:
    """Over many positions, each token comes as often as its probability says."""
    row = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0] + [-30.0] * (VOCABULARY - 5))
    num_draws = 4000
    rows = [
        sequence(drawn=(0,) * position, seed=9, max_tokens=9999, **filters) for position in range(num_draws)
    ]

    counts = [0] * VOCABULARY
    for draw in sample(row.repeat(num_draws, 1), rows):
        counts[draw.token_id] += 1

    probabilities = torch.softmax(row, -1)
    kept = kept_by(
        probabilities, filters.get("top_k", VOCABULARY), filters.get("top_p", 2.0), filters.get("min_p", 0.0)
    )
    total = sum(probabilities[i].item() for i in kept)
    for token_id in range(5):
        expected = probabilities[token_id].item() / total if token_id in kept else 0.0
        assert abs(counts[token_id] / num_draws - expected) < 0.03


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 50, "min_p": 0.01}])
def test_a_draw_does_not_depend_on_its_company(sample: Sample, filters: dict) -> None:
    values = logits(rows=6)
    rows = [sequence(drawn=(3,) * n, seed=n * 7, choice=n % 2, **filters) for n in range(6)]

    together = sample(values.clone(), rows)

    alone = [sample(values[n : n + 1].clone(), [rows[n]])[0] for n in range(6)]
    assert list(together) == alone


def test_seed_choice_and_position_each_change_the_number() -> None:
    grid = torch.cartesian_prod(torch.arange(8), torch.arange(8), torch.arange(8)).numpy().astype("uint64")

    numbers = uniform(grid[:, 0], grid[:, 1], grid[:, 2])

    assert len(set(numbers.tolist())) == 512
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert abs(numbers.mean() - 0.5) < 0.05


def test_presence_and_frequency_count_drawn_tokens_only(sample: Sample) -> None:
    values = torch.zeros(1, VOCABULARY)
    values[0, [5, 6, 7]] = torch.tensor([3.0, 2.9, 2.0])
    asked = sequence(
        prompt=(6, 6), drawn=(5, 5, 7), temperature=0.0, presence_penalty=1.0, frequency_penalty=0.5
    )

    assert sample(values, [asked])[0].token_id == 6
    assert values[0, 5] == 3.0 - 1.0 - 2 * 0.5
    assert values[0, 7] == 2.0 - 1.0 - 0.5


def test_repetition_counts_prompt_and_drawn_tokens(sample: Sample) -> None:
    values = torch.ones(1, VOCABULARY)
    values[0, 7] = -1.0
    sample(values, [sequence(prompt=(5, 7), drawn=(6,), temperature=0.0, repetition_penalty=2.0)])

    assert values[0, [5, 6, 7, 8]].tolist() == [0.5, 0.5, -2.0, 1.0]


def test_bias_can_force_and_forbid(sample: Sample) -> None:
    values = logits()
    best = int(values.argmax())

    forced = sample(values.clone(), [sequence(temperature=0.0, logit_bias={3: 100.0})])[0].token_id
    forbidden = sample(values.clone(), [sequence(temperature=0.0, logit_bias={best: -100.0})])[0].token_id

    assert forced == 3
    assert forbidden != best


def test_stop_tokens_wait_for_the_minimum_length(sample: Sample) -> None:
    values = logits()
    best = int(values.argmax())
    asked = {"temperature": 0.0, "stop_token_ids": (best,), "min_tokens": 2}

    early = sample(values.clone(), [sequence(drawn=(1,), **asked)])[0].token_id
    late = sample(values.clone(), [sequence(drawn=(1, 1), **asked)])[0].token_id

    assert early != best
    assert late == best


def test_logprobs_are_the_models_own_and_only_for_who_asked(sample: Sample) -> None:
    """Before temperature, bias and filters; best first."""
    values = logits(rows=3)
    expected = torch.log_softmax(values, -1)
    rows = [
        sequence(temperature=0.0),
        sequence(temperature=0.7, logprobs=0, seed=1),
        sequence(temperature=0.0, logprobs=5, logit_bias={3: 100.0}),
    ]

    silent, chosen, full = sample(values, rows)

    assert (silent.logprob, silent.top) == (None, ())
    assert chosen.logprob == pytest.approx(expected[1, chosen.token_id].item())
    assert chosen.top == ()
    assert full.token_id == 3
    assert full.logprob == pytest.approx(expected[2, 3].item())
    best, ids = expected[2].topk(5)
    assert full.top == tuple(zip(ids.tolist(), best.tolist(), strict=True))


def test_extreme_logits_and_temperatures_draw_something(sample: Sample) -> None:
    values = torch.full((2, VOCABULARY), -1e30)
    values[:, 9] = 1e30

    draws = sample(values, [sequence(temperature=1e-4), sequence(temperature=2.0, top_p=0.5)])

    assert [draw.token_id for draw in draws] == [9, 9]
