"""What the radix tree costs in time and memory, beside a flat cache of chained block hashes.

python -m benchmarks.tree
"""

import argparse
import hashlib
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence

from tqdm import tqdm

from benchmarks.program import run
from prefix_cache.assembly import CacheSizes, assemble
from prefix_cache.tiers import TieredCache
from prefix_cache.tokens import pack
from prefix_cache.tree import PrefixCache

BLOCK_SIZE = 16
BLOCK_BYTES = BLOCK_SIZE * 4
VOCABULARY = 49152


def remember(cache: PrefixCache, prompt: bytes) -> None:
    """A sequence's whole life: lease, commit, release."""
    num_tokens = len(prompt) // 4
    lease = cache.acquire(b"a", prompt, max_new=num_tokens, num_required=num_tokens, now=0.0)
    assert lease is not None, "the pool holds everything here"
    cache.take_copies()
    cache.finish_copies()
    cache.commit(lease, prompt[lease.num_committed * 4 :])
    cache.release(lease, 0.0)


def hit(cache: PrefixCache, prompt: bytes) -> None:
    """Match and lock a prompt that is cached but for its last token, and let it go."""
    lease = cache.acquire(b"a", prompt, max_new=1, num_required=len(prompt) // 4, now=1.0)
    assert lease is not None, "the pool holds everything here"
    assert lease.num_matched == len(prompt) // 4 - 1, "all but the last token is cached"
    cache.take_copies()
    cache.finish_copies()
    cache.release(lease, 1.0)


def tiered_hit(cache: TieredCache, prompt: bytes) -> None:
    """The same with a host and a disk to look at, a history to learn from, and an explanation."""
    lease = cache.acquire(b"a", prompt, max_new=1, num_required=len(prompt) // 4, now=1.0)
    assert lease is not None, "the pool holds everything here"
    assert lease.num_matched == len(prompt) // 4 - 1, "all but the last token is cached"
    cache.take_copies()
    cache.finish_copies()
    cache.device.release(lease, 1.0)


def flat_hit(blocks: dict[bytes, list[int]], prompt: bytes) -> None:
    """The same in a flat cache: hash each block with its predecessor's hash, and count holders."""
    digest, held = b"", []
    for start in range(0, len(prompt) - BLOCK_BYTES + 1, BLOCK_BYTES):
        digest = hashlib.sha256(digest + prompt[start : start + BLOCK_BYTES]).digest()
        entry = blocks.setdefault(digest, [0])
        entry[0] += 1
        held.append(entry)
    for entry in held:
        entry[0] -= 1


def median_ms(work: Callable[[], None], num_runs: int = 200) -> float:
    """The median time of one run."""
    times = []
    for _ in range(num_runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def tokens(rng: random.Random, num_tokens: int) -> list[int]:
    """Random ids."""
    return [rng.randrange(VOCABULARY) for _ in range(num_tokens)]


def measure_time(rng: random.Random) -> None:
    """One long prompt, alone and among 10,000 conversations under one system prompt."""
    system, rest = tokens(rng, 1024), tokens(rng, 7169)
    prompt = pack([*system, *rest])
    alone = PrefixCache(1000, BLOCK_SIZE)
    remember(alone, prompt)
    crowded = PrefixCache(400_000, BLOCK_SIZE)
    remember(crowded, prompt)
    conversations = [pack([*system, *tokens(rng, 512)]) for _ in range(10_000)]
    started = time.perf_counter()
    for conversation in conversations:
        remember(crowded, conversation)
    seconds = time.perf_counter() - started
    sizes = CacheSizes(num_blocks=1000, block_size=BLOCK_SIZE, num_host_blocks=1000, num_disk_blocks=1000)
    tiered, _ = assemble(sizes)
    for tree in (tiered.device, *tiered.colder):
        remember(tree, prompt)
    flat: dict[bytes, list[int]] = {}
    print(f"match and lock 8,192 cached tokens, alone:      {median_ms(lambda: hit(alone, prompt)):.3f} ms")
    print(f"the same among 10,000 conversations:            {median_ms(lambda: hit(crowded, prompt)):.3f} ms")
    through_tiers = median_ms(lambda: tiered_hit(tiered, prompt))
    print(f"the same through three tiers, with a reason:    {through_tiers:.3f} ms")
    print(
        f"the same in a flat cache of chained SHA-256:    {median_ms(lambda: flat_hit(flat, prompt)):.3f} ms"
    )
    print(f"a conversation's life, a block of its own:      {seconds / 320_000 * 1e6:.1f} us")


def measure_memory(rng: random.Random, num_conversations: int) -> None:
    """Conversations of 64 blocks that share nothing."""
    num_blocks = num_conversations * 64
    tracemalloc.start()
    cache = PrefixCache(num_blocks, BLOCK_SIZE)
    prompts: Sequence[int] = tqdm(range(num_conversations), desc="filling", unit="conversation", leave=False)
    for _ in prompts:
        remember(cache, rng.randbytes(64 * BLOCK_BYTES))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    prompt = rng.randbytes(64 * BLOCK_BYTES)
    remember(cache, prompt)
    print(f"{num_blocks:,} blocks in conversations of 64:        {num_bytes / num_blocks:.0f} bytes a block")
    print(f"match and lock 1,024 tokens among them:         {median_ms(lambda: hit(cache, prompt)):.3f} ms")


def main() -> None:
    """Print every figure."""
    argparse.ArgumentParser(
        prog="stemma bench tree", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    rng = random.Random(1)
    measure_time(rng)
    measure_memory(rng, 15_625)


if __name__ == "__main__":
    run(main)
