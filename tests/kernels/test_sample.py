"""Sampling on the device: which tokens are kept, and which is drawn, exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from engine.sampling.filters import keep_best
from kernels.adjust_logits import adjust_logits, adjust_logits_reference
from kernels.sample import draw, draw_reference, sample, sample_reference, weigh, weigh_reference
from kernels.sampling_cut import MAX_VOCAB, find_cuts, keep_reference

SETTINGS = [
    (1, 1.0, 0.0),
    (5, 1.0, 0.0),
    (10**6, 0.7, 0.0),
    (20, 0.5, 0.0),
    (10**6, 1.0, 0.05),
    (9, 0.9, 0.2),
]
Filters = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _filters(settings: list[tuple[int, float, float]]) -> Filters:
    top_k, top_p, min_p = zip(*settings, strict=True)
    return (
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float64),
    )


def _kept(weights: torch.Tensor, filters: Filters) -> torch.Tensor:
    cut, end = find_cuts(weights, *filters)
    bits = weights.view(torch.int32)
    ids = torch.arange(weights.shape[1])
    return (bits > cut[:, None]) | ((bits == cut[:, None]) & (ids < end[:, None]))


def _logits(num_rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("vocab", [1, 64, 100, 2000, 20_000])
def test_kept_sets_and_drawn_tokens_are_those_of_the_reference(vocab: int) -> None:
    settings = SETTINGS * (1 if vocab > 2000 else 3)
    logits, filters = _logits(len(settings), vocab), _filters(settings)
    numbers = torch.rand(len(settings), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    temperatures = torch.linspace(0.5, 1.5, len(settings))
    weights = logits.clone()
    weigh(weights, temperatures)
    torch.testing.assert_close(weights, weigh_reference(logits, temperatures), atol=0, rtol=1e-5)

    kept = _kept(weights, filters)
    tokens = draw(weights, *find_cuts(weights, *filters), numbers)

    assert torch.equal(kept, keep_reference(weights, *filters))
    assert torch.equal(tokens, draw_reference(weights, kept, numbers))
    assert torch.equal(
        sample(logits.clone(), temperatures, *filters, numbers),
        sample_reference(logits, temperatures, *filters, numbers),
    )


@pytest.mark.parametrize("settings", SETTINGS)
def test_of_tokens_of_one_weight_the_lowest_ids_are_kept(settings: tuple[int, float, float]) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.randint(0, 4, (4, 100), generator=generator) / 3
    weights[:, 50] = 1.0
    filters = _filters([settings] * 4)

    assert torch.equal(_kept(weights, filters), keep_reference(weights, *filters))


def test_six_of_ten_equal_tokens_hold_more_than_half_and_have_the_lowest_ids() -> None:
    weights = torch.ones(2, 10)

    kept = _kept(weights, _filters([(10, 0.55, 0.0), (3, 1.0, 0.0)]))

    assert kept.int().tolist() == [[1] * 6 + [0] * 4, [1] * 3 + [0] * 7]


def test_of_equal_tokens_at_the_least_weight_all_are_kept_and_just_below_it_none() -> None:
    weights = torch.tensor([[0.5, 1.0, 0.25, 0.5, 0.5, 0.25]]).repeat(2, 1)

    kept = _kept(weights, _filters([(5, 1.0, 0.5), (5, 1.0, 0.5 + 1e-12)]))

    assert kept.int().tolist() == [[1, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0]]


@examples(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 200),
    top_k=st.integers(1, 220),
    top_p=st.floats(0.0, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_without_ties_kept_sets_are_those_of_the_engines_filters(
    seed: int, vocab: int, top_k: int, top_p: float, min_p: float
) -> None:
    logits = _logits(1, vocab, seed)
    probabilities = torch.softmax(logits, dim=-1)
    if len(probabilities.unique()) < vocab:
        return
    filters = _filters([(top_k, top_p, min_p)])
    nucleus = torch.where(filters[1] < 1, filters[1], torch.inf)
    expected = keep_best(probabilities, filters[0].long().clamp(max=vocab), nucleus, filters[2])
    weights = logits.clone()
    weigh(weights, torch.ones(1))

    found = _kept(weights, filters)[0].nonzero().flatten().tolist()

    assert set(found) == set(expected.token_ids[expected.weights > 0].tolist())


def test_a_greedy_row_takes_the_first_of_its_greatest_logits_whatever_the_number() -> None:
    logits = _logits(2, 300)
    logits[0, 17] = logits[0, 200] = 50.0
    logits[0, 5] = 49.999996  # so near that at a temperature of 1 its weight is almost the same
    filters = _filters([(300, 1.0, 0.0)] * 2)

    tokens = sample(logits.clone(), torch.zeros(2), *filters, torch.full((2,), 0.99, dtype=torch.float64))

    assert tokens.tolist() == [17, int(logits[1].argmax())]


def test_numbers_draw_tokens_as_often_as_their_weights_say() -> None:
    logits = torch.tensor([1.0, 2.0, 4.0, 1.0]).log().repeat(200, 1)
    numbers = (torch.arange(200, dtype=torch.float64) + 0.5) / 200

    tokens = sample(logits, torch.ones(200), *_filters([(4, 1.0, 0.0)] * 200), numbers)

    assert tokens.bincount().tolist() == [25, 50, 100, 25]


@pytest.mark.parametrize("settings", SETTINGS)
def test_numbers_on_a_grid_draw_each_kept_token_by_its_share(settings: tuple[int, float, float]) -> None:
    num_draws = 200
    logits = _logits(1, 12, seed=7) / 2
    nucleus = torch.tensor([settings[1] if settings[1] < 1 else torch.inf], dtype=torch.float64)
    top_k, min_p = torch.tensor([min(settings[0], 12)]), torch.tensor([settings[2]], dtype=torch.float64)
    kept = keep_best(torch.softmax(logits / 1.3, -1), top_k, nucleus, min_p)
    shares = torch.zeros(12, dtype=torch.float64)
    shares[kept.token_ids[0]] = kept.weights[0] / kept.weights.sum()
    numbers = (torch.arange(num_draws, dtype=torch.float64) + 0.5) / num_draws
    weigh(logits, torch.tensor([1.3]))
    cut, end = find_cuts(logits, *_filters([settings]))

    tokens = draw(logits.repeat(num_draws, 1), cut.repeat(num_draws), end.repeat(num_draws), numbers)

    counts = tokens.bincount(minlength=12)
    assert ((counts - shares * num_draws).abs() <= 1).all()
    assert (counts[shares == 0] == 0).all()


def test_the_largest_vocabulary_is_cut_and_drawn_from_exactly() -> None:
    logits = torch.zeros(2, MAX_VOCAB)
    numbers = torch.tensor([1 - 2**-53, 0.5], dtype=torch.float64)

    tokens = sample(logits, torch.ones(2), *_filters([(MAX_VOCAB, 1.0, 0.0), (MAX_VOCAB, 0.5, 0.0)]), numbers)

    half = -(-MAX_VOCAB // 2)
    assert tokens.tolist() == [MAX_VOCAB - 1, half // 2]


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")  # by the interpreter's numpy
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("settings", SETTINGS[:4])
def test_logits_that_are_infinite_or_no_number_draw_a_token(
    settings: tuple[int, float, float], temperature: float
) -> None:
    logits = torch.full((6, 100), -torch.inf)
    logits[0, 70] = -3.0
    logits[1] = _logits(1, 100)
    logits[1, 30] = torch.inf
    logits[3] = torch.nan
    logits[4] = torch.nan
    logits[4, 90] = 2.0
    logits[5] = _logits(1, 100)
    logits[5, ::2] = torch.nan
    filters = _filters([settings] * 6)
    temperatures = torch.full((6,), temperature)
    numbers = torch.full((6,), 0.4, dtype=torch.float64)

    tokens = sample(logits.clone(), temperatures, *filters, numbers)

    assert torch.equal(tokens, sample_reference(logits, temperatures, *filters, numbers))
    assert tokens[[0, 1, 3, 4]].tolist() == [70, 30, 0, 90]
    assert 0 <= tokens[2] < 100
    assert tokens[5] % 2 == 1


def test_a_number_at_the_border_of_two_tokens_draws_the_later() -> None:
    numbers = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)

    tokens = sample(torch.zeros(4, 4), torch.ones(4), *_filters([(4, 1.0, 0.0)] * 4), numbers)

    assert tokens.tolist() == [0, 1, 2, 3]


def test_a_number_next_to_one_draws_a_token_that_is_kept() -> None:
    logits = _logits(1, 5000)
    filters = _filters([(10, 1.0, 0.0)])
    last = torch.tensor([1 - 2**-53], dtype=torch.float64)

    token = sample(logits.clone(), torch.ones(1), *filters, last)

    assert token.item() == logits[0].topk(10).indices.max()


def test_a_row_draws_the_same_alone_and_in_company() -> None:
    logits = _logits(4, 700)
    filters = _filters([(30, 0.9, 0.01)] * 4)
    numbers = torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=torch.float64)
    together = sample(logits.clone(), torch.ones(4), *filters, numbers)

    for row in range(4):
        one = slice(row, row + 1)
        alone = sample(logits[one].clone(), torch.ones(1), *(each[one] for each in filters), numbers[one])
        assert alone.item() == together[row]


@pytest.mark.parametrize("num_edits", [0, 1, 64, 300])
def test_edits_change_the_tokens_that_they_name_and_no_other(num_edits: int) -> None:
    logits = _logits(3, 1000)
    generator = torch.Generator().manual_seed(4)
    named = torch.randperm(3000, generator=generator)[:num_edits].int()
    places = torch.stack((named // 1000, named % 1000), dim=1)
    amounts = torch.rand(num_edits, 3, generator=generator) + 0.5
    amounts[:1, 2] = -torch.inf
    expected = logits.clone()
    adjust_logits_reference(expected, places, amounts)

    adjust_logits(logits, places, amounts)

    assert torch.equal(logits, expected)
