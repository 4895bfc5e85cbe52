"""How often a greedy answer changes with what was cached and who runs beside it, by precision.

In exact arithmetic never: cache and scheduler do not change which tokens are attended to (the tests prove
that). In floating point the order of additions depends on the shape of a step, and where two logits almost
tie, that decides. This counts how often.

python -m benchmarks.agreement --model data/models/SmolLM2-135M-Instruct.Q4_1.gguf --data
mt_bench_question.jsonl

The data is MT-bench's question.jsonl (FastChat), one question a line under "turns".
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tqdm import tqdm

from benchmarks.flags import positive
from benchmarks.program import run
from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import EngineConfig, Submit, TokenEvents
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from gateway.conversation.prompt import Prompts, load_prompts

LIMITS = Limits(max_batch_tokens=256, max_sequences=16)


def answers(runner: ModelRunner, prompts: Sequence[bytes], num_tokens: int, *, warm: bool) -> list[list[int]]:
    """Greedy answers to prompts that run together; `warm` computes each prompt beforehand."""
    core = EngineCore(runner, LIMITS)
    if warm:
        _run(core, prompts, 1)
    return _run(core, prompts, num_tokens)


def _run(core: EngineCore, prompts: Sequence[bytes], num_tokens: int) -> list[list[int]]:
    said: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        core.submit(Submit(request_id=str(number), prompt=prompt, sampling=sampling, namespace=b"a"))
    while core.has_work:
        for message in core.step():
            assert isinstance(message, TokenEvents), "no step fails here"
            for event in message.events:
                said[int(event.request_id)] += event.token_ids
    return said


def _questions(path: Path, prompts: Prompts, num_questions: int) -> list[bytes]:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    lines = path.read_text(encoding="utf-8").splitlines()[:num_questions]
    messages = [[{"role": "user", "content": json.loads(line)["turns"][0]}] for line in lines]
    return [prompts.render(each, tenant="bench", now=now).ids.tobytes() for each in messages]


def measure(config: EngineConfig, questions: list[bytes], num_tokens: int) -> None:
    """Print, for one precision, how many answers differ from the one that was computed alone and cold."""
    runner = load_runner(config)
    name_of_mode = f"{config.dtype}{', deterministic' if config.deterministic else ''}"
    bar = tqdm(questions, desc=name_of_mode, unit="question")
    alone = [answers(runner, [question], num_tokens, warm=False)[0] for question in bar]
    hit = [answers(runner, [question], num_tokens, warm=True)[0] for question in questions]
    company = [
        answer
        for start in range(0, len(questions), 8)
        for answer in answers(runner, questions[start : start + 8], num_tokens, warm=False)
    ]
    for name, others in (("cached", hit), ("in company of 8", company)):
        num_equal = sum(first == second for first, second in zip(alone, others, strict=True))
        print(f"{name_of_mode}, {name}: {num_equal} of {len(alone)} answers of {num_tokens} tokens are equal")


def main() -> None:
    """Measure both precisions, and the deterministic mode."""
    parser = argparse.ArgumentParser(
        prog="stemma bench agreement", description="How often greedy answers change with cache and company."
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="MT-bench's question.jsonl")
    parser.add_argument("--questions", type=positive, default=40)
    parser.add_argument("--tokens", type=positive, default=64)
    options = parser.parse_args()
    questions = _questions(options.data, load_prompts(options.model), options.questions)
    model = str(options.model)
    measure(EngineConfig(model=model), questions, options.tokens)
    measure(EngineConfig(model=model, deterministic=True), questions, options.tokens)
    measure(EngineConfig(model=model, dtype="float32"), questions, options.tokens)


if __name__ == "__main__":
    run(main)
