"""A small real model: searches, proposals, log-probabilities of prompts and plain answers, alone and in one
batch.

Everything is held against the model itself, run over the whole text at once without any cache.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import Abort, Accepted, BeamParams, EngineConfig, Submit, TokenEvent, TokenEvents
from engine.pace import StepPace
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.speculation.length import LookaheadPolicy
from prefix_cache.tokens import pack
from tests.engine.checkpoints import random_model, write_checkpoint

PROMPT = [7, 3, 9, 3, 9, 1, 44, 3, 9, 1, 60, 7, 3, 9, 3, 9, 1, 44, 3, 9, 1, 61, 2]
Logprobs = Callable[[Sequence[int]], torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(random_model("llama"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["off", "ngram", "draft"])
def runner(request: pytest.FixtureRequest, folder: Path) -> ModelRunner:
    return load(folder, speculation=request.param, draft_layers=1 if request.param == "draft" else None)


def load(folder: Path, **values: Any) -> ModelRunner:
    return load_runner(EngineConfig(model=str(folder), dtype="float32", kv_bytes=4_000_000, **values))


@pytest.fixture(scope="module")
def logprobs(folder: Path) -> Logprobs:
    """The model's log-probabilities after each token of a text: [num_tokens, vocab]."""
    model = random_model("llama")

    def of(tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0].float(), dim=-1)

    return of


class Eager:
    """Proposes as much as it may, always; counts what held."""

    def __init__(self, max_tokens: int = 4) -> None:
        self.max_tokens = max_tokens
        self.num_accepted = 0

    def num_tokens(self, sequence: object, num_running: int) -> int:
        return self.max_tokens

    def note(self, sequence: object, num_proposed: int, num_accepted: int) -> None:
        self.num_accepted += num_accepted

    def forget(self, sequence: object) -> None:
        pass


def make_core(runner: ModelRunner, **limits: int) -> EngineCore:
    values = {"max_batch_tokens": 16, "max_sequences": 12, **limits}
    return EngineCore(runner, Limits(**values), lookahead=Eager())


def submit(
    core: EngineCore,
    name: str,
    prompt: Sequence[int],
    *,
    choices: int = 1,
    is_side: bool = False,
    **values: Any,
) -> None:
    sampling = SamplingParams(**{"max_tokens": 12, "temperature": 0.0, **values})
    answer = core.submit(
        Submit(
            request_id=name,
            prompt=pack(prompt),
            sampling=sampling,
            namespace=b"t",
            num_choices=choices,
            is_side=is_side,
        )
    )
    assert isinstance(answer, Accepted)


def drain(core: EngineCore) -> dict[tuple[str, int], list[TokenEvent]]:
    events: dict[tuple[str, int], list[TokenEvent]] = {}
    while core.has_work:
        core.tend()
        for message in core.step():
            assert isinstance(message, TokenEvents)
            for event in message.events:
                events.setdefault((event.request_id, event.choice), []).append(event)
        core.scheduler.check_invariants()
    assert core.cache.device.ledger.num_held == 0
    return events


def text(events: list[TokenEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def greedy(logprobs: Logprobs, prompt: Sequence[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_tokens:
        tokens.append(int(logprobs(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def search(logprobs: Logprobs, prompt: Sequence[int], width: int, num_tokens: int) -> list[list[int]]:
    """A plain search without ends: all continuations of all texts, the best `width` of them, again and
    again.
    """
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(num_tokens):
        grown = [
            (total + value, [*drawn, token])
            for total, drawn in live
            for token, value in enumerate(logprobs([*prompt, *drawn])[-1].tolist())
        ]
        live = sorted(grown, key=lambda each: -each[0])[:width]
    return [drawn for _, drawn in live]


def test_greedy_text_is_the_models_own(runner: ModelRunner, logprobs: Logprobs) -> None:
    core = make_core(runner)
    submit(core, "a", PROMPT, max_tokens=30)

    assert text(drain(core)["a", 0]) == greedy(logprobs, PROMPT, 30)


def test_proposals_that_hold_save_steps(folder: Path) -> None:
    """The model's own layers as a draft are always right, so each step brings five tokens."""
    core = make_core(load(folder, speculation="draft"))
    submit(core, "a", PROMPT, max_tokens=31)
    drain(core)

    stats = core.stats()
    assert stats.num_accepted_tokens == stats.num_proposed_tokens == 24
    assert stats.num_steps == 2 + 6  # two chunks of the prompt, which draw one token


def test_a_repeating_text_is_proposed_from_itself(folder: Path) -> None:
    """A bias makes the model say one token for ever: all but the first proposals hold."""
    core = make_core(load(folder, speculation="ngram"))
    submit(core, "a", PROMPT, max_tokens=30, logit_bias={5: 100.0})

    assert text(drain(core)["a", 0]) == [5] * 30
    assert core.stats().num_accepted_tokens > 15


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_drawn_text_is_the_same_whatever_is_proposed(folder: Path, temperature: float) -> None:
    """Seed for seed, with penalties and filters, by no proposals, by n-grams and by a draft."""
    said = []
    for way in ("off", "ngram", "draft"):
        core = make_core(load(folder, speculation=way, draft_layers=1 if way == "draft" else None))
        for seed in range(6):
            submit(
                core,
                str(seed),
                PROMPT,
                temperature=temperature,
                seed=seed,
                top_p=0.9,
                repetition_penalty=1.1,
                presence_penalty=0.5,
                logit_bias=dict.fromkeys(range(3, 8), 12.0),  # few words, so that they come again
                min_tokens=4,
                stop_token_ids=(3,),
                max_tokens=24,
            )
        events = drain(core)
        said.append([text(events[str(seed), 0]) for seed in range(6)])
        assert (core.stats().num_proposed_tokens > 0) == (way != "off")

    assert said[0] == said[1] == said[2]
    assert len({tuple(each) for each in said[0]}) > 3


@pytest.mark.parametrize("width", [1, 3, 5])
def test_a_beam_search_finds_what_a_plain_one_finds(
    runner: ModelRunner, logprobs: Logprobs, width: int
) -> None:
    core = make_core(runner)
    submit(core, "a", PROMPT, choices=width, max_tokens=8, beam=BeamParams(width=width), logprobs=2)

    events = drain(core)

    found = [text(events["a", choice]) for choice in range(width)]
    assert found == search(logprobs, PROMPT, width, 8)
    (best,) = events["a", 0]
    assert best.logprobs is not None
    told = [each.logprob for each in best.logprobs]
    wanted = [
        logprobs([*PROMPT, *found[0][:place]])[-1, token].item() for place, token in enumerate(found[0])
    ]
    assert told == pytest.approx(wanted, abs=1e-4)
    assert all(len(each.top) == 2 for each in best.logprobs)


def test_hypotheses_share_blocks_and_copy_only_what_is_not_full(runner: ModelRunner) -> None:
    """Four hypotheses over a prompt of six blocks: the prompt's full blocks exist once."""
    core = make_core(runner, max_batch_tokens=128)
    prompt = [*PROMPT, *PROMPT, *PROMPT, *PROMPT, 5]  # 93 tokens: five full blocks, and a part of one
    submit(core, "a", prompt, max_tokens=6, beam=BeamParams(width=4))
    core.step()
    core.step()
    tables = [sequence.block_table for sequence in core.scheduler.running]

    assert len(tables) == 4
    assert all(table[:5] == tables[0][:5] for table in tables)
    assert len({table[5] for table in tables}) == 4
    assert core.stats().num_saved_blocks == 3 * 5
    assert core.stats().num_copied_blocks == 3
    drain(core)
    assert core.stats().num_beam_forks >= 3


def test_a_search_leaves_nothing_behind_but_its_answer(runner: ModelRunner) -> None:
    """Blocks of hypotheses that were dropped are free; the next turn finds the best one's."""
    core = make_core(runner)
    submit(core, "a", PROMPT, max_tokens=24, beam=BeamParams(width=4))
    answer = text(drain(core)["a", 0])

    num_found = core.cache.match_length(b"t", pack([*PROMPT, *answer, 5]))
    assert num_found == len(PROMPT) + 23
    assert core.cache.device.ledger.num_cached <= 3 + 2


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("max_batch_tokens", [16, 5, 64])
def test_prompt_logprobs_are_the_models_own_whatever_is_cached(
    runner: ModelRunner, logprobs: Logprobs, is_warm: bool, max_batch_tokens: int
) -> None:
    core = make_core(runner, max_batch_tokens=max_batch_tokens, max_sequences=5)
    if is_warm:
        submit(core, "before", PROMPT)
        drain(core)
    submit(core, "a", PROMPT, max_tokens=3, prompt_logprobs=2, logprobs=0)

    events = drain(core)["a", 0]

    told = [each for event in events for each in event.prompt_logprobs or []]
    wanted = logprobs(PROMPT)
    chosen = [wanted[place, token].item() for place, token in enumerate(PROMPT[1:])]
    assert [each.logprob for each in told] == pytest.approx(chosen, abs=1e-4)
    best = wanted[:-1].topk(2)
    assert [[token for token, _ in each.top] for each in told] == best.indices.tolist()
    assert text(events) == greedy(logprobs, PROMPT, 3)
    assert events[0].num_cached_tokens == 0


def test_all_of_it_in_one_batch_says_what_it_says_alone(runner: ModelRunner) -> None:
    """Answers, choices, searches, prompts that are weighed and requests that leave no trace, over a pool that
    is too small for all of them at once.
    """

    def ask(core: EngineCore, name: str) -> None:
        match name:
            case "plain":
                submit(core, name, PROMPT, max_tokens=20)
            case "drawn":
                submit(core, name, PROMPT, temperature=1.0, seed=3, choices=3)
            case "search":
                submit(core, name, [*PROMPT, 8], choices=2, beam=BeamParams(width=3), max_tokens=9)
            case "weighed":
                submit(core, name, [*PROMPT, 9], prompt_logprobs=1, max_tokens=4)
            case "side":
                submit(core, name, PROMPT, is_side=True, choices=2, temperature=1.0, seed=5)
            case "side search":
                submit(core, name, PROMPT, is_side=True, beam=BeamParams(width=4), max_tokens=7)

    names = ("plain", "drawn", "search", "weighed", "side", "side search")
    alone = {}
    for name in names:
        core = make_core(runner)
        ask(core, name)
        alone |= {key: text(events) for key, events in drain(core).items()}
    core = make_core(runner)
    for name in names:
        ask(core, name)

    together = {key: text(events) for key, events in drain(core).items()}

    assert together == alone
    assert len(together) == 1 + 3 + 2 + 1 + 2 + 1


def test_proposing_stops_where_it_does_not_pay(folder: Path) -> None:
    """A draft of one layer that is always wrong, on a machine where each token costs as much as a step."""
    runner = load(folder, speculation="draft", draft_layers=1)
    pace = StepPace(1.0, {1: 1.0, 2: 2.0, 8: 8.0, 32: 32.0})
    core = EngineCore(
        runner,
        Limits(max_batch_tokens=32, max_sequences=4),
        lookahead=LookaheadPolicy(pace.seconds, max_tokens=4),
    )
    submit(core, "a", PROMPT, max_tokens=100)
    drain(core)

    assert core.stats().num_proposed_tokens < 10


def test_nothing_is_remembered_of_searches_that_were_aborted(runner: ModelRunner) -> None:
    """In whatever state: some hypotheses have given way, and are in no queue."""
    core = make_core(runner, max_batch_tokens=8, max_sequences=2)
    for num_steps in range(1, 14):
        submit(core, "a", PROMPT, beam=BeamParams(width=4), max_tokens=20)
        for _ in range(num_steps):
            core.step()
        core.abort(Abort(request_id="a"))
        core.step()
        core.scheduler.check_invariants()
        assert not core.has_work
        assert core.scheduler._beaming._groups == {}
    assert core.cache.device.ledger.num_held == 0


def test_a_watcher_is_told_of_what_stays_alone(runner: ModelRunner) -> None:
    """Not of what hypotheses and side requests compute and take with them; of the answer, when it is kept."""
    core = make_core(runner)
    core.cache.events.is_on = True
    submit(core, "a", PROMPT, max_tokens=24, beam=BeamParams(width=3))
    submit(core, "side", [*PROMPT, 50], is_side=True, max_tokens=30)
    drain(core)

    told = {event.tokens for event in core.cache.events.take()[0] if event.kind == "committed"}
    there = set()
    for node in core.cache.device.nodes():
        path = node.path_tokens()
        there |= {path[: end * 64] for end in range(1, len(path) // 64 + 1)}  # full blocks of 16 tokens
    believed = {tokens[: end * 64] for tokens in told for end in range(1, len(tokens) // 64 + 1)}
    assert believed == there
    assert len(there) >= 2
