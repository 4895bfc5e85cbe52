"""Whether one tenant can tell from figures or from time what another has cached.

Tenant B asks prompts that tenant A has just asked, and prompts that nobody has, in turns. A permutation test
compares the times to the first token: the difference of the groups' mean logarithms, against 10,000 random
relabellings. Below THRESHOLD the groups count as told apart, so a cache that tells nothing fails once in a
thousand runs. The positive control is the same test with both keys of one tenant: it must tell them apart.
"""

import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.served import ServedModel, stemma_serve

THRESHOLD = 0.001
NUM_PAIRS = 20
NUM_PERMUTATIONS = 10_000
KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("ann", "ann-too", "ben")}


@pytest.fixture(scope="module")
def server(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    keys = [{"key": key, "tenant": name.removesuffix("-too")} for name, key in KEYS.items()]
    settings = {"STEMMA_ENGINE__KV_BYTES": "256MiB", "STEMMA_KEYS": json.dumps(keys)}
    with stemma_serve(default_model_path, tmp_path_factory.mktemp("data"), **settings) as served:
        yield served


def prompt(draw: random.Random) -> str:
    """About two hundred tokens that nothing else begins like."""
    return " ".join("".join(draw.choices("abcdefghijklmnop", k=4)) for _ in range(70))


def ask(server: ServedModel, name: str, text: str) -> tuple[float, int]:
    """Seconds to the whole answer, which is one token; and the cached tokens that it admits to."""
    started = time.perf_counter()
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": 1},
        headers={"authorization": f"Bearer {KEYS[name]}"},
        timeout=60.0,
    )
    seconds = time.perf_counter() - started
    assert answer.status_code == 200, answer.text
    return seconds, answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def watch(server: ServedModel, first: str, second: str, seed: int) -> tuple[float, set[int], set[int]]:
    """The p-value of what `second` sees, and the cached tokens that it is told of, asked before or not."""
    draw = random.Random(seed)
    known: list[tuple[float, int]] = []
    fresh: list[tuple[float, int]] = []
    for warm_up in range(2):
        ask(server, second, prompt(draw) + str(warm_up))
    for _ in range(NUM_PAIRS):
        secret, other = prompt(draw), prompt(draw)
        ask(server, first, secret)
        pair = [(known, secret), (fresh, other)]
        draw.shuffle(pair)
        for group, text in pair:
            group.append(ask(server, second, text))
    p_value = permutation_test([each[0] for each in known], [each[0] for each in fresh], draw)
    return p_value, {each[1] for each in known}, {each[1] for each in fresh}


def permutation_test(first: list[float], second: list[float], draw: random.Random) -> float:
    """How often chance alone separates the groups' mean logarithms as far as they are."""

    def distance(one: list[float], other: list[float]) -> float:
        return abs(sum(one) / len(one) - sum(other) / len(other))

    logs = [math.log(value) for value in (*first, *second)]
    seen = distance(logs[: len(first)], logs[len(first) :])
    num_as_far = 0
    for _ in range(NUM_PERMUTATIONS):
        draw.shuffle(logs)
        num_as_far += distance(logs[: len(first)], logs[len(first) :]) >= seen
    return (num_as_far + 1) / (NUM_PERMUTATIONS + 1)


def test_another_tenants_prompts_look_like_prompts_that_nobody_asked(server: ServedModel) -> None:
    p_value, known, fresh = watch(server, "ann", "ben", seed=1)

    # The template's first words, and what random words have in common, are the tenant's own.
    assert max(known | fresh) < 32
    assert p_value >= THRESHOLD


def test_the_same_test_sees_what_one_tenant_shares(server: ServedModel) -> None:
    p_value, known, fresh = watch(server, "ann", "ann-too", seed=2)

    assert max(fresh) < 32 < min(known)
    assert p_value < THRESHOLD
