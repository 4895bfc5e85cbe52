"""transformers' own `generate`, one chat turn after the other: what a server is measured against.

stemma bench one-by-one --model FOLDER [--turns 6] [--users 2]

FOLDER holds a model as transformers reads it. Turns have the lengths that `stemma bench serve` gives a chat:
a system prompt of 600 tokens, 60 new ones a turn beside 15 of the template, 64 answered, and the whole
history given again. Greedy, bfloat16, with the keys and values that `generate` keeps within one answer.
"""

import argparse
import random
import time
from collections.abc import Sequence

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from benchmarks.flags import positive
from benchmarks.program import run

SYSTEM_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 600, 75, 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rate."""
    parser = argparse.ArgumentParser(
        prog="stemma bench one-by-one",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--turns", type=positive, default=6)
    parser.add_argument("--users", type=positive, default=2)
    options = parser.parse_args(arguments)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
    draw = random.Random(0)

    def some_tokens(count: int) -> list[int]:
        return [draw.randrange(model.config.vocab_size // 2, model.config.vocab_size) for _ in range(count)]

    def answer(history: list[int]) -> list[int]:
        prompt = torch.tensor([history])
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            repetition_penalty=1.0,
            min_new_tokens=ANSWER_TOKENS,
            max_new_tokens=ANSWER_TOKENS,
        )
        return found[0].tolist()  # type: ignore[no-any-return] # transformers says Any

    head, seconds = some_tokens(SYSTEM_TOKENS), 0.0
    num_turns = options.users * options.turns
    with torch.inference_mode(), tqdm(total=num_turns, unit="turn", disable=None) as bar:
        answer(head)  # the first one is not counted: memory is touched and threads start
        for _ in range(options.users):
            history = list(head)
            for _ in range(options.turns):
                history += some_tokens(TURN_TOKENS)
                start = time.perf_counter()
                history = answer(history)
                seconds += time.perf_counter() - start
                bar.update()
    print(f"{num_turns * ANSWER_TOKENS / seconds:.1f} output tokens a second, one turn after the other")


if __name__ == "__main__":
    run(main)
