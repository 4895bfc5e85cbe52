"""Whole steps with a meter, and what becomes of them when something is wrong."""

from dataclasses import dataclass, replace

import pytest
import torch

from engine.batch import Batch
from engine.graphs import Forward
from engine.kv_pool import KVPool
from engine.step import Draw
from kernels import Kernels
from scripts.gpu_check.attention_inputs import make_inputs, picked_rows
from scripts.gpu_check.caching import cache_rows, disagreement
from scripts.gpu_check.model import Model, make_model
from scripts.gpu_check.moving import copy_row, swap_rows
from scripts.gpu_check.row import Row
from scripts.gpu_check.shapes import SMALL, Load
from scripts.gpu_check.steps import decode_rows, prompt_row
from tests.scripts.trials import CPU, MICROSECONDS, YARDSTICKS, FixedClock

METER = (FixedClock(), YARDSTICKS)
STEPS = replace(SMALL.steps, asked=18, num_answered=2)


@pytest.fixture(scope="module")
def model() -> Model:
    """Of plain torch: Triton's interpreter runs in one thread alone."""
    return make_model(SMALL, CPU, Kernels.reference())


@dataclass
class Crooked:
    """Says something else than the decoder that it is given."""

    decoder: Forward

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        return self.decoder.forward(batch, pool).roll(1, dims=1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(hidden)


def with_recordings(model: Model, forward: Forward) -> Model:
    return replace(model, graphs=forward)  # type: ignore[arg-type]


def assert_timed(row: Row) -> None:
    assert row.status == "right"
    assert row.microseconds is not None
    assert row.microseconds > 0
    assert row.rate


def test_decoding_is_timed_as_it_is_served_and_alone(model: Model) -> None:
    recorded, plain, alone = decode_rows(model, Load(1, 20), METER)

    for row in (recorded, plain):
        assert_timed(row)
        assert row.share is not None
        assert "tokens/s" in str(row.rate)
    assert alone.microseconds == MICROSECONDS
    assert [row.target for row in (recorded, plain, alone)] == [0.75, None, None]
    assert len(decode_rows(model, Load(3, 20), None)) == 2


def test_recorded_steps_that_say_something_else_are_wrong_and_not_timed(model: Model) -> None:
    crooked = with_recordings(model, Crooked(model.decoder))

    rows = decode_rows(crooked, Load(1, 20), METER)

    assert [row.status for row in rows] == ["WRONG", "WRONG"]
    assert all(row.microseconds is None and row.rate is None for row in rows)


def test_more_than_the_pool_holds_is_skipped_by_name(model: Model) -> None:
    (row,) = decode_rows(model, Load(1000, 20), METER)

    assert row.status == "skipped"
    assert row.shape == "batch 1,000, context 20"
    assert "keys and values take" in row.note


def test_a_prompt_has_a_rate(model: Model) -> None:
    row = prompt_row(model, 9, METER)

    assert_timed(row)
    assert row.operations is not None
    assert row.operations > 0


def test_blocks_move_at_a_rate_alone_and_beside_steps(model: Model) -> None:
    out, out_beside, back, back_beside = swap_rows(model, STEPS, METER)

    for row in (copy_row(model, STEPS, METER), out, out_beside, back, back_beside):
        assert_timed(row)
        assert "GB/s" in str(row.rate)
    assert "beside decoding 3 x 20" in out_beside.shape
    assert "alone" in out_beside.note


def test_a_prompt_that_is_asked_again_is_found_by_who_asked_it_alone(model: Model) -> None:
    cold, cached, another = cache_rows(model, STEPS, METER)

    for row in (cold, cached, another):
        assert_timed(row)
    assert [row.note.split()[0] for row in (cold, cached, another)] == ["0", "17", "0"]
    assert cached.rate != "100.0% of cold"


def test_a_cache_that_changes_the_answer_is_wrong(model: Model) -> None:
    """Recordings serve the second time, when but one token is left to compute; the first is a prompt's."""

    @dataclass
    class CrookedLater(Crooked):
        def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
            hidden = self.decoder.forward(batch, pool)
            return hidden.roll(1, dims=1) if len(batch.token_ids) == 1 else hidden

    rows = cache_rows(
        with_recordings(model, CrookedLater(model.decoder)), replace(STEPS, num_answered=1), METER
    )

    assert [row.status for row in rows] == ["right", "WRONG", "right"]
    assert rows[1].microseconds is None


def draw(token_id: int, *top: tuple[int, float]) -> Draw:
    return Draw(token_id, top[0][1], top)


def test_answers_agree_until_two_tokens_are_as_good_as_each_other() -> None:
    clear, near = draw(1, (1, -0.1), (2, -3.0)), draw(1, (1, -0.70), (2, -0.71))
    swapped = draw(2, (2, -0.70), (1, -0.71))

    assert disagreement((clear, clear), (clear, clear), 0.1) == (2, 0.0)
    assert disagreement((near, clear), (swapped, draw(9, (9, -5.0))), 0.1) == (1, 0.0)
    assert disagreement((clear,), (draw(1, (1, -0.3), (2, -3.0)),), 0.1)[1] == pytest.approx(0.2)
    assert disagreement((clear,), (draw(2, (2, -0.1), (1, -3.0)),), 0.1)[1] == float("inf")
    assert disagreement((clear,), (), 0.1)[1] == float("inf")


def test_attention_is_tried_on_a_pool_that_is_nan_where_nothing_was_written() -> None:
    load = Load(3, 300)

    inputs = make_inputs(load, SMALL, CPU)
    lost = inputs.keys.isnan().any(dim=(1, 2))  # [num_blocks, block_size]

    assert lost.sum() == 16 + 3 * (-300 % 16)
    assert torch.equal(lost, inputs.values.isnan().any(dim=(1, 3)))
    assert lost[inputs.tables[:, -1].long(), 300 % 16 :].all()


def test_first_and_last_tokens_are_among_those_that_are_looked_at() -> None:
    assert picked_rows(Load(3, 300)) == [0, 1, 2]
    many = picked_rows(Load(1, 8192, num_new=8192))
    assert (many[0], many[-1], len(many)) == (0, 8191, 96)
