"""transformers' generate, one turn after the other: every turn has its lengths, and the rate counts all."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationMixin

from benchmarks import one_by_one
from tests.engine.checkpoints import random_model, write_checkpoint


def test_turns_grow_and_the_rate_counts_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(random_model("llama", max_position_embeddings=1024), tmp_path)
    sizes: list[tuple[int, int]] = []
    generate = GenerationMixin.generate

    def watched(model: GenerationMixin, prompt: torch.Tensor, **options: object) -> torch.Tensor:
        found = generate(model, prompt, **options)  # type: ignore[arg-type, operator]
        sizes.append((prompt.shape[1], found.shape[1]))
        return found  # type: ignore[no-any-return]

    monkeypatch.setattr(GenerationMixin, "generate", watched)
    monkeypatch.setattr(one_by_one, "time", SimpleNamespace(perf_counter=count().__next__))
    one_by_one.main(["--model", str(folder), "--users", "1", "--turns", "2"])

    assert sizes == [(600, 664), (675, 739), (814, 878)]
    assert capsys.readouterr().out == "64.0 output tokens a second, one turn after the other\n"
