"""Very many simulated steps: random loads over all tiers, with aborts, parks, pins, crashes and damage.

python -m tests.simulation.soak --steps 1000000

Each round has a seed of its own, printed when it begins to count; `--seed S --rounds 1` plays it again. After
every step the books of every tier are checked from scratch, and every answer is compared with the one that
the request gets alone.
"""

import argparse
import random
import time
from functools import lru_cache

from tqdm import tqdm

from engine.scheduler import Limits
from engine.sequence import BeamParams, SamplingParams
from prefix_cache.lease import Retention
from prefix_cache.pins import PinsFull
from prefix_cache.quota import Quota
from prefix_cache.tokens import pack
from tests.simulation.harness import STOP, Simulation, answer_alone, search_alone

STEPS_A_ROUND = 2000
MAX_TOKENS = 48


def asking(max_tokens: int, width: int | None) -> SamplingParams:
    """What a request asks for: an answer, or a search over so many hypotheses."""
    beam = None if width is None else BeamParams(width=width, early_stopping="never")
    return SamplingParams(max_tokens=max_tokens, stop_token_ids=(STOP,), beam=beam)


@lru_cache(maxsize=100_000)
def alone(
    prompt: tuple[int, ...], max_tokens: int, choice: int, width: int | None = None
) -> tuple[list[int], str]:
    """What a request says when it is alone."""
    sampling = asking(max_tokens, width)
    if width is not None:
        return search_alone(prompt, sampling, choice + 1)[choice]
    return answer_alone(prompt, sampling, choice)


class Round:
    """One simulation with a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random
        self.simulation = Simulation(
            num_blocks=draw.randint(16, 60),
            block_size=4,
            limits=Limits(draw.randint(4, 32), draw.randint(1, 4), max_overtaken=draw.randint(1, 8)),
            num_host_blocks=draw.choice([0, 6, 40]),
            num_disk_blocks=draw.choice([0, 6, 40, 100]),
            copies_per_step=draw.randint(1, 8),
            swap=draw.choice(["auto", "always", "never"]),
            disk_for_all=draw.random() < 0.5,
            park_after=draw.choice([None, 3.0, 30.0]),
            quotas={
                b"a": Quota(floor_blocks=draw.choice([0, 0, 2]), ceiling_blocks=draw.choice([None, 12, 16])),
                b"b": Quota(ceiling_blocks=draw.choice([None, 12])),
            },
            max_request_tokens=MAX_TOKENS,
            weights={b"a": draw.choice([1.0, 0.3, 4.0])},
            max_lookahead=draw.choice([0, 2, 5]),
            budget=draw.choice([None, 1, 12]),
        )
        self.starts = [[draw.randint(0, 5) for _ in range(draw.randint(1, 24))] for _ in range(6)]
        self.expected: dict[str, tuple[tuple[int, ...], int, int | None]] = {}
        self.compared: set[tuple[str, int]] = set()
        self.num_requests = self.num_crashes = self.num_compared = 0

    def play(self, num_steps: int) -> int:
        """So many steps that compute something, or some more until all have ended; returns how many."""
        taken = num_idle = 0
        while taken < num_steps or self.simulation.scheduler.has_work:
            if taken < num_steps:
                self.disturb()
            num_moved = self.simulation.num_moved
            has_stepped = self.simulation.step(self.in_flight) is not None
            taken += has_stepped
            is_idle = not has_stepped and self.simulation.num_moved == num_moved
            num_idle = num_idle + 1 if is_idle and self.simulation.scheduler.has_work else 0
            assert num_idle < 3, "work waits, and nothing runs or moves"
            self.compare()
        self.simulation.settle()
        for tree in (self.simulation.cache.device, *self.simulation.cache.colder):
            assert tree.ledger.num_held == tree.ledger.num_pinned, "blocks have not come home"
        return taken

    def disturb(self) -> None:
        draw, simulation = self.random, self.simulation
        if draw.random() < 0.35 and simulation.scheduler.num_waiting < 12:
            self.arrive()
        if draw.random() < 0.03:
            self.abort()
        if draw.random() < 0.02:
            simulation.cache.park(b"a", pack(draw.choice(self.starts)))
        if draw.random() < 0.02:
            simulation.cache.prefetch(b"a", pack(draw.choice(self.starts)), simulation.now)
        if draw.random() < 0.02:
            simulation.cache.forget(b"a", pack(draw.choice(self.starts)), draw.randint(0, 8))
        if draw.random() < 0.01:
            try:
                simulation.cache.pins.set("p", b"a", pack(draw.choice(self.starts)[:12]), simulation.now + 50)
            except PinsFull:
                simulation.cache.pins.end("p")
        if draw.random() < 0.01 and simulation.memory.records:
            simulation.memory.damaged.add(draw.choice(sorted(simulation.memory.records)))
        if draw.random() < 0.001:
            self.crash()

    def arrive(self) -> None:
        draw = self.random
        start = draw.choice(self.starts)
        prompt = (
            *start[: draw.randint(1, len(start))],
            *(draw.randint(0, 2) for _ in range(draw.randint(0, 9))),
        )
        if draw.random() < 0.4 and self.expected:  # a next turn of something that was said
            before, max_tokens, width = self.expected[draw.choice(list(self.expected))]
            prompt = (*before, *alone(before, max_tokens, 0, width)[0], draw.randint(0, 5))[: MAX_TOKENS - 2]
        width = draw.randint(1, 3) if draw.random() < 0.1 else None
        max_tokens = draw.randint(1, min(MAX_TOKENS - len(prompt), 40 if width is None else 8))
        name = str(self.num_requests)
        self.num_requests += 1
        choices = draw.choice([1, 1, 1, 2]) if width is None else draw.randint(1, width)
        self.simulation.add(
            name,
            prompt,
            asking(max_tokens, width),
            choices=choices,
            queue_priority=draw.randint(-1, 1),
            namespace=draw.choice([b"a", b"a", b"b"]),
            retention=Retention(
                is_side=draw.random() < 0.1, persists=draw.random() < 0.5, priority=draw.randint(-1, 1)
            ),
        )
        self.expected[name] = (prompt, max_tokens, width)

    def abort(self) -> None:
        if self.expected:
            name = self.random.choice(list(self.expected))
            self.simulation.scheduler.abort(name, None, self.simulation.now)

    def in_flight(self) -> None:
        if self.random.random() < 0.02:
            self.abort()

    def crash(self) -> None:
        self.num_crashes += 1
        self.simulation.crash()
        self.simulation.answers.clear()
        self.simulation.ends.clear()
        self.expected.clear()
        self.compared.clear()

    def compare(self) -> None:
        """Check what has ended since the last time."""
        for name, choice in [key for key in self.simulation.ends if key not in self.compared]:
            prompt, max_tokens, width = self.expected[name]
            said = (self.simulation.answers[name, choice], self.simulation.ends[name, choice])
            assert said == alone(prompt, max_tokens, choice, width), f"request {name} has changed its answer"
            self.compared.add((name, choice))
            self.num_compared += 1


def main() -> None:
    """Rounds until there were enough steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    num_steps = num_compared = num_crashes = num_promoted = 0
    num_rounds, started = 0, time.monotonic()
    with tqdm(total=options.steps, unit="step") as bar:
        while num_steps < options.steps and num_rounds != options.rounds:
            seed = options.seed + num_rounds
            bar.set_postfix_str(f"seed {seed}")
            played = Round(seed)
            try:
                taken = played.play(STEPS_A_ROUND)
            except BaseException:
                print(f"\nseed {seed} failed: python -m tests.simulation.soak --seed {seed} --rounds 1")
                raise
            num_steps += taken
            num_rounds += 1
            num_compared += played.num_compared
            num_crashes += played.num_crashes
            num_promoted += played.simulation.cache.counters.num_promoted_tokens
            bar.update(taken)
    print(
        f"{num_steps:,} steps in {num_rounds:,} rounds (seeds {options.seed} to "
        f"{options.seed + num_rounds - 1}), {time.monotonic() - started:.0f} s: {num_compared:,} answers "
        f"compared, {num_promoted:,} tokens promoted, {num_crashes:,} crashes; nothing lost, nothing changed"
    )


if __name__ == "__main__":
    main()
