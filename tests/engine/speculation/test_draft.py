"""What the draft has computed of which block: a model that drafts for itself is never wrong, unless it looks
at keys and values of another text.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.loading import load_runner
from engine.messages import EngineConfig
from engine.runner import ModelRunner
from engine.sequence import Sequence
from engine.step import Span, Step
from prefix_cache.plan import BlockCopy, BlockId, Tier
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.paged import make_sequence

LOOKAHEAD = 4
ONE, OTHER = list(range(10, 30)), list(range(50, 70))  # two texts of a block and a part


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(random_model("llama"), tmp_path_factory.mktemp("model"))


@pytest.fixture
def runner(folder: Path) -> ModelRunner:
    config = EngineConfig(model=str(folder), dtype="float32", kv_bytes=1_000_000, speculation="draft")
    return load_runner(config)


def prefill(
    runner: ModelRunner, sequence: Sequence, start: int = 0, *, copies: tuple[BlockCopy, ...] = ()
) -> None:
    """Compute all but the text's last token; the draft computes nothing yet."""
    runner.run(Step((Span(sequence, start, sequence.num_tokens - 1),), copies))


def num_held(runner: ModelRunner, sequence: Sequence, num_steps: int = 3) -> tuple[int, int]:
    """Decode with proposals; how many held, and how many there were."""
    sequence.sampling = replace(sequence.sampling, max_tokens=99)
    held = proposed = 0
    for _ in range(num_steps):
        # The span is the last token; what a step drew is computed but for its own last token.
        span = Span(sequence, sequence.num_tokens - 1, sequence.num_tokens, LOOKAHEAD)
        (brought,) = runner.run(Step((span,))).spans
        sequence.tokens.extend(draw.token_id for draw in brought.draws)
        held += len(brought.draws) - 1
        proposed += brought.num_proposed
    return held, proposed


def test_a_model_that_drafts_for_itself_is_always_right(runner: ModelRunner) -> None:
    sequence = make_sequence(ONE, [3, 1, 4])
    prefill(runner, sequence)

    assert num_held(runner, sequence) == (12, 12)


@pytest.mark.parametrize("length", [20, 12])
def test_blocks_that_another_text_takes_are_computed_anew(runner: ModelRunner, length: int) -> None:
    before = make_sequence(ONE, [3, 1, 4])
    prefill(runner, before)
    num_held(runner, before)
    sequence = make_sequence(OTHER[:length], [3, 1, 4])
    prefill(runner, sequence)

    assert num_held(runner, sequence) == (12, 12)


def test_blocks_that_come_from_a_colder_tier_are_computed_anew(runner: ModelRunner) -> None:
    """They bring the model's own part alone."""
    other = make_sequence(OTHER, [5, 6, 7])
    prefill(runner, other)
    pool = runner.pool
    staging = torch.empty(2, pool.bytes_per_block, dtype=torch.uint8)
    pool.gather([BlockId(5), BlockId(6)], staging)
    before = make_sequence(ONE, [3, 1, 4])
    prefill(runner, before)
    num_held(runner, before)

    pool.scatter([BlockId(3), BlockId(1)], staging)
    sequence = make_sequence(OTHER, [3, 1, 4])

    assert num_held(runner, sequence) == (12, 12)


@pytest.mark.parametrize("has_draft", [False, True])
def test_a_copied_block_has_of_the_draft_what_its_source_has(runner: ModelRunner, has_draft: bool) -> None:
    """Whatever lay in the target before."""
    source = make_sequence(ONE[:12], [0, 8, 9])
    prefill(runner, source)
    if has_draft:
        num_held(runner, source)
    stale = make_sequence(OTHER, [2, 10, 11])
    prefill(runner, stale)
    num_held(runner, stale)

    copy = BlockCopy(Tier.DEVICE, BlockId(0), Tier.DEVICE, BlockId(2), 10)
    sequence = make_sequence([*ONE[:10], *OTHER[:4]], [2, 10, 11])
    prefill(runner, sequence, 10, copies=(copy,))

    assert num_held(runner, sequence) == (12, 12)


def test_a_draft_that_is_far_behind_catches_up_piece_by_piece(tmp_path: Path) -> None:
    """600 tokens of a prompt take three steps of 256 at most; the first two propose nothing."""
    folder = write_checkpoint(random_model("llama", max_position_embeddings=1024), tmp_path)
    runner = load_runner(
        EngineConfig(model=str(folder), dtype="float32", kv_bytes=4_000_000, speculation="draft")
    )
    sequence = make_sequence([place % 97 for place in range(600)], list(range(40)))
    prefill(runner, sequence)

    assert num_held(runner, sequence, 2) == (0, 0)
    assert num_held(runner, sequence, 3) == (12, 12)
