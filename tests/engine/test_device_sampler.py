"""Sampling on a device against the host's: what is asked for, what is told, and what is drawn."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.edits import edits_of
from engine.sampling.host_sampler import HostSampler
from engine.sampling.penalties import adjust_logits
from engine.sampling.rows import Row, demanding_row, numbers_of
from engine.sampling.sampler import Weighed
from engine.sequence import BeamParams
from engine.step import Draw
from kernels import Kernels
from kernels.adjust_logits import adjust_logits_reference
from tests.engine.other_device import put, watched
from tests.engine.test_sampling import logits, sequence

VOCABULARY = 1000
TRITON = Kernels.triton().sampling
assert TRITON is not None
SAMPLER = DeviceSampler(TRITON, VOCABULARY)
few_ids = st.lists(st.integers(0, 30), max_size=12).map(tuple)


def assert_same(found: list[Draw], expected: list[Draw]) -> None:
    assert [draw.token_id for draw in found] == [draw.token_id for draw in expected]
    for draw, known in zip(found, expected, strict=True):
        assert draw.logprob == pytest.approx(known.logprob, abs=1e-5)
        assert [token_id for token_id, _ in draw.top] == [token_id for token_id, _ in known.top]
        assert [value for _, value in draw.top] == pytest.approx([value for _, value in known.top], abs=1e-5)


@given(
    prompt=few_ids,
    drawn=few_ids,
    proposed=few_ids,
    repetition=st.sampled_from([1.0, 0.7, 1.3]),
    presence=st.sampled_from([0.0, 0.4, -1.1]),
    frequency=st.sampled_from([0.0, 0.3]),
    bias=st.dictionaries(st.integers(0, 30), st.sampled_from([0.1, -100.0, 7.3, -float("inf")]), max_size=5),
    min_tokens=st.integers(0, 14),
    stops=few_ids,
)
def test_edits_are_the_penalties_one_after_the_other_bit_by_bit(
    prompt, drawn, proposed, repetition, presence, frequency, bias, min_tokens, stops
) -> None:
    row = sequence(
        (1, *prompt),
        drawn,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        min_tokens=min_tokens,
        stop_token_ids=stops,
    )
    rows = [sequence(), Row(row.sequence, proposed)]
    expected, found = logits(rows=2), logits(rows=2)
    adjust_logits(expected, rows)

    places, amounts = map(torch.from_numpy, edits_of(rows))
    adjust_logits_reference(found, places, amounts)

    assert torch.equal(found, expected)
    assert len({tuple(place) for place in places.tolist()}) == len(places), "no token twice"


def test_mixed_rows_and_prompts_are_told_as_the_host_tells_them() -> None:
    rows = [
        sequence(temperature=0.0),
        sequence(temperature=0.0, logprobs=3, logit_bias={7: 9.0}),
        sequence(drawn=(4, 4), temperature=0.0, frequency_penalty=0.5, beam=BeamParams(width=2), logprobs=6),
        sequence(temperature=1.3, seed=3, logprobs=0),
        sequence(drawn=(9,), temperature=3.0, seed=2, beam=BeamParams(width=4)),
        sequence(temperature=5.0, top_k=1, logprobs=20, repetition_penalty=1.2),
        Row(sequence(temperature=0.9, seed=8, presence_penalty=1.0).sequence, (5, 6)),
    ]
    weighed = [Weighed(logits(4, seed=2), [5, 6, 7, 8], 2), Weighed(logits(1, seed=3), [999], 0)]
    values = logits(len(rows), seed=1)

    expected = HostSampler().sample(values.clone(), rows, weighed)
    found = SAMPLER.sample(values.clone(), rows, iter(weighed))

    assert_same(found.draws, expected.draws)
    for told, known in zip(found.weighed, expected.weighed, strict=True):
        assert_same(told, known)
    assert [len(draw.top) for draw in found.draws] == [0, 3, 6, 0, 8, 20, 0]
    assert SAMPLER.draw_tokens(values.clone(), rows) == HostSampler().draw_tokens(values.clone(), rows)


def test_a_number_draws_the_hosts_token_unless_it_lies_on_a_border() -> None:
    rows = [sequence(drawn=(1,) * place, seed=4, temperature=0.8) for place in range(60)]
    values = logits(60)

    found = SAMPLER.draw_tokens(values.clone(), rows)

    borders = torch.softmax(values.double() / 0.8, dim=-1).cumsum(-1)
    numbers = torch.from_numpy(numbers_of(rows))
    distances = (borders - numbers[:, None]).abs().amin(-1)
    expected = HostSampler().draw_tokens(values.clone(), rows)
    for token_id, known, distance in zip(found, expected, distances.tolist(), strict=True):
        assert token_id == known or distance < 1e-6
    assert len(set(found)) > 20


def test_filtered_rows_draw_what_the_hosts_filters_keep() -> None:
    wishes = {"top_k": 5, "top_p": 0.8, "min_p": 0.02, "temperature": 1.2}
    rows = [sequence(drawn=(1,) * place, seed=6, **wishes) for place in range(40)]
    row = logits(seed=5, spread=1.5)

    found = set(SAMPLER.draw_tokens(row.repeat(40, 1), rows))

    many = [sequence(drawn=(1,) * place, seed=6, **wishes) for place in range(400)]
    assert found == set(HostSampler().draw_tokens(row.repeat(400, 1), many))


def test_rows_that_nobody_draws_launch_no_drawing_and_no_edit() -> None:
    def refuse(*_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("launched")

    sampler = DeviceSampler(replace(TRITON, adjust_logits=refuse, sample=refuse), VOCABULARY)
    values = logits(2)
    values[0, [40, 20]] = 99.0  # the first of equals is taken

    draws = sampler.sample(values, [sequence(temperature=0.0), sequence(temperature=1e-6)]).draws

    assert [draw.token_id for draw in draws] == [20, int(values[1].argmax())]


def test_nothing_to_draw_is_waited_for_and_told() -> None:
    with watched() as watch:
        sampled = SAMPLER.sample(put(torch.empty(0, VOCABULARY)), [])

    assert sampled == ([], [])
    assert len(watch.waits) == 1


def test_all_that_is_asked_at_once_is_waited_for_once() -> None:
    rows = [demanding_row(), sequence(beam=BeamParams(width=3)), sequence(temperature=0.0)] * 2
    with watched() as watch:
        on_device = replace(
            TRITON,
            adjust_logits=watch.on_device(TRITON.adjust_logits),
            sample=watch.on_device(TRITON.sample),
        )
        pieces = [Weighed(put(logits(3, seed=place)), [1, 2, 3], 2) for place in range(2)]
        sampled = DeviceSampler(on_device, VOCABULARY).sample(put(logits(6)), rows, pieces)

    assert len(watch.waits) == 1
    expected = HostSampler().sample(logits(0), [], [Weighed(logits(3, seed=1), [1, 2, 3], 2)])
    assert_same(sampled.weighed[1], expected.weighed[0])


def test_a_vocabulary_that_is_too_large_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="vocab_size is 524288"):
        DeviceSampler(TRITON, 1 << 19)
    DeviceSampler(TRITON, 262_208)


def test_the_hosts_kernels_bring_no_sampler() -> None:
    assert Kernels.cpu().sampling is None
