"""What is drawn with proposals is drawn as the model's own probabilities have it: counted, not argued."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch

from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import EngineConfig, Submit, TokenEvents
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from prefix_cache.tokens import pack
from tests.engine.checkpoints import random_model, write_checkpoint

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
WORDS = (5, 6, 7)  # that may be drawn at all
NUM_DRAWS = 2000
NUM_TOKENS = 3
CRITICAL = 54.05  # of chi-squared with 26 degrees of freedom, at 0.1 %


class Eager:
    """Proposes as much as it may, always."""

    def num_tokens(self, sequence: object, num_running: int) -> int:
        return 4

    def note(self, sequence: object, num_proposed: int, num_accepted: int) -> None: ...

    def forget(self, sequence: object) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(random_model("llama"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def wanted() -> dict[tuple[int, ...], float]:
    """The exact probability of every text of three tokens, by the model run over the whole text."""
    model = random_model("llama")
    bias = torch.full((101,), -torch.inf)
    bias[list(WORDS)] = 0.0
    chances = {}
    for text in product(WORDS, repeat=NUM_TOKENS):
        with torch.inference_mode():
            logits = model(torch.tensor([[*PROMPT, *text]])).logits[0, len(PROMPT) - 1 : -1].double()
        rows = torch.softmax((logits + bias) / 4.0, dim=-1)
        chances[text] = torch.stack([row[token] for row, token in zip(rows, text, strict=True)]).prod().item()
    assert sum(chances.values()) == pytest.approx(1.0)
    return chances


@pytest.mark.parametrize("way", ["off", "ngram", "draft"])
def test_texts_are_drawn_with_their_probabilities(
    folder: Path, wanted: dict[tuple[int, ...], float], way: str
) -> None:
    """All 27 texts of three tokens, by chi-squared over 2,000 seeds; the proposals' part is not small."""
    runner = load_runner(
        EngineConfig(
            model=str(folder),
            dtype="float32",
            kv_bytes=4_000_000,
            speculation=way,
            draft_layers=1 if way == "draft" else None,
        )
    )
    core = EngineCore(runner, Limits(max_batch_tokens=256, max_sequences=32), lookahead=Eager())
    forbidden = {token: -1e9 for token in range(101) if token not in WORDS}
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(NUM_DRAWS):
        sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=4.0, seed=seed, logit_bias=forbidden)
        core.submit(Submit(request_id=str(seed), prompt=pack(PROMPT), sampling=sampling, namespace=b"t"))
        if seed % 200 == 199:
            counts += _drain(core)

    chi_squared = sum(
        (counts[text] - NUM_DRAWS * chance) ** 2 / (NUM_DRAWS * chance) for text, chance in wanted.items()
    )

    assert sum(counts.values()) == NUM_DRAWS
    assert min(wanted.values()) * NUM_DRAWS > 5
    assert chi_squared < CRITICAL
    if way != "off":
        assert core.stats().num_accepted_tokens > NUM_DRAWS / 10
        assert core.stats().num_accepted_tokens < core.stats().num_proposed_tokens


def _drain(core: EngineCore) -> Counter[tuple[int, ...]]:
    said: dict[str, list[int]] = {}
    while core.has_work:
        for message in core.step():
            assert isinstance(message, TokenEvents)
            for event in message.events:
                said.setdefault(event.request_id, []).extend(event.token_ids)
    return Counter(tuple(text) for text in said.values())
