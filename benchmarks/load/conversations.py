"""What is asked: conversations as plain values, made up from a seed. The same seed makes the same bytes."""

import random
from dataclasses import dataclass

from benchmarks.load.texts import plain_text

__all__ = ["SHAPES", "Conversation", "Shape", "Turn", "converse"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a user, and what comes of it."""

    text: str
    num_answer: int  # tokens to answer
    pause: float = 0.0  # seconds of thought after the answer, before the next turn


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that follow one another, each sent with the whole history before it."""

    turns: tuple[Turn, ...]
    system: str = ""  # no system message when empty


@dataclass(frozen=True, slots=True)
class Shape:
    """How conversations of a workload look. Lengths are in words, which are about one token each."""

    num_conversations: int
    num_turns: int = 1
    num_systems: int = 1  # different system prompts; conversations take them in turn
    system: int = 600  # no system message when 0
    user: int = 60
    answer: int = 64  # tokens
    think: float = 0.0  # mean seconds between turns, uniform from 0 to twice that


SHAPES: dict[str, Shape] = {
    "chat": Shape(num_conversations=8, num_turns=6),
    "shared": Shape(num_conversations=64, num_systems=4),
    "long": Shape(num_conversations=16, system=0, user=4000, answer=32),
    "burst": Shape(num_conversations=32, num_systems=4),
}


def converse(shape: Shape, seed: str) -> tuple[Conversation, ...]:
    """The conversations of a shape."""
    systems = [
        plain_text(random.Random(f"{seed}/system/{number}" if number else seed), shape.system)
        for number in range(shape.num_systems)
    ]
    return tuple(
        Conversation(_turns(shape, random.Random(f"{seed}/{number}")), systems[number % len(systems)])
        for number in range(shape.num_conversations)
    )


def _turns(shape: Shape, rng: random.Random) -> tuple[Turn, ...]:
    return tuple(
        Turn(plain_text(rng, shape.user), shape.answer, shape.think * rng.random() * 2)
        for _ in range(shape.num_turns)
    )
