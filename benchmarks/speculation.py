"""What proposing tokens ahead brings: tokens a second and acceptance, for one user, with each way to propose.

stemma bench speculation --model MODEL --text TEXT [--data question.jsonl] [--draft-layers 6]

Two loads: questions (MT-bench), whose answers repeat little; and texts to be copied, whose answers repeat
much. Greedy and drawn at temperature 1. "Equal" counts answers that are the same as without proposals, which
in bfloat16 they need not be: products of more rows round otherwise, unless the deterministic mode is on.
"""

import argparse
import json
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from benchmarks.flags import positive
from benchmarks.program import run
from benchmarks.prompts import TextPrompts
from engine.local import load_core
from engine.messages import EngineConfig, Submit, TokenEvents
from engine.sequence import SamplingParams
from gateway.conversation.prompt import load_prompts

Way = Literal["off", "ngram", "draft"]


def answer(
    config: EngineConfig, prompts: Sequence["array[int]"], num_tokens: int, temperature: float
) -> tuple[list[list[int]], float, float]:
    """The answers one after the other, tokens a second of decoding, and the share of proposals that held."""
    core = load_core(config)
    answers, seconds = [], 0.0
    for number, prompt in enumerate(tqdm(prompts, desc=f"{config.speculation}, temperature {temperature:g}")):
        sampling = SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=number)
        core.submit(
            Submit(request_id=str(number), prompt=prompt.tobytes(), sampling=sampling, namespace=b"bench")
        )
        drawn: list[int] = []
        started = None
        while core.has_work:
            for message in core.step():
                assert isinstance(message, TokenEvents), "nothing fails here"
                drawn += [token_id for event in message.events for token_id in event.token_ids]
                started = started or time.perf_counter()  # the first token's prefill is not counted
        seconds += time.perf_counter() - (started or 0.0)
        answers.append(drawn)
    stats = core.stats()
    core.close()
    rate = sum(len(each) - 1 for each in answers) / seconds
    return answers, rate, stats.num_accepted_tokens / max(stats.num_proposed_tokens, 1)


def main() -> None:
    """Print a table for each load."""
    parser = argparse.ArgumentParser(
        prog="stemma bench speculation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="a long text to copy from")
    parser.add_argument("--data", type=Path, help="MT-bench's question.jsonl")
    parser.add_argument("--requests", type=positive, default=8)
    parser.add_argument("--tokens", type=positive, default=96)
    parser.add_argument("--draft-layers", type=positive, default=6)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--deterministic", action="store_true")
    options = parser.parse_args()
    for name, prompts in _loads(options).items():
        print(f"{name}: {len(prompts)} prompts, {options.tokens} tokens each")
        for temperature in (0.0, 1.0):
            plain: list[list[int]] = []
            for way in ("off", "ngram", "draft"):
                config = EngineConfig(
                    model=str(options.model),
                    dtype=options.dtype,
                    deterministic=options.deterministic,
                    speculation=way,
                    draft_layers=options.draft_layers if way == "draft" else None,
                )
                answers, rate, share = answer(config, prompts, options.tokens, temperature)
                plain = plain or answers
                num_equal = sum(one == other for one, other in zip(plain, answers, strict=True))
                print(
                    f"  temperature {temperature:g}, {way:6} {rate:7.1f} tokens/s, {share:6.1%} accepted, "
                    f"{num_equal} of {len(plain)} equal"
                )


def _loads(options: argparse.Namespace) -> dict[str, list["array[int]"]]:
    texts = TextPrompts(options.model, options.text)
    loads = {}
    copies = []
    for _ in range(options.requests):
        piece = texts.take(160)
        copies.append(piece + piece[:40])  # it has begun to copy
    loads["copying"] = copies
    if options.data is not None:
        prompts = load_prompts(options.model)
        lines = options.data.read_text(encoding="utf-8").splitlines()[: options.requests]
        loads["questions"] = [
            array("i", prompts.tokenizer.encode(f"Question: {json.loads(line)['turns'][0]}\nAnswer:"))
            for line in lines
        ]
    return loads


if __name__ == "__main__":
    run(main)
