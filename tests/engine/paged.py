"""Running a decoder step by step over a pool, as the engine does, and keeping every position's logits."""

from array import array

import torch

from engine.batch import build_batch
from engine.kv_pool import KVPool
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.sequence import SamplingParams, Sequence
from engine.step import Span
from kernels import Kernels
from prefix_cache.lease import Lease
from prefix_cache.plan import BlockId


def make_sequence(token_ids: list[int], blocks: list[int]) -> Sequence:
    """A sequence that holds the given blocks; no tree knows it."""
    sequence = Sequence(
        request_id="request",
        choice=0,
        tokens=array("i", token_ids),
        num_prompt_tokens=len(token_ids),
        sampling=SamplingParams(max_tokens=16, temperature=0.0),
        namespace=b"",
    )
    lease = Lease.__new__(Lease)
    lease.blocks = [BlockId(block) for block in blocks]
    sequence.lease = lease
    return sequence


def make_pool(
    config: ModelConfig, kernels: Kernels, num_blocks: int, dtype: torch.dtype = torch.float32
) -> KVPool:
    """A pool full of NaN, so that a slot that is read before it is written shows."""
    pool = KVPool(config, num_blocks, 16, dtype=dtype, device=torch.device("cpu"), operations=kernels)
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    return pool


@torch.inference_mode()
def run_spans(decoder: Decoder, pool: KVPool, spans: list[Span]) -> list[torch.Tensor]:
    """One step. The logits of each span's tokens: [num_tokens, vocab_size]."""
    batch = build_batch(spans, pool.block_size, torch.device("cpu"))
    logits = decoder.logits(decoder.forward(batch, pool))
    return list(logits.split([span.end - span.start for span in spans]))


def run_in_chunks(
    decoder: Decoder, pool: KVPool, prompts: list[list[int]], chunks: list[int]
) -> list[torch.Tensor]:
    """Each prompt in its own chunk size, all together in ragged steps over shuffled blocks."""
    blocks = torch.randperm(pool.num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    sequences = []
    for prompt in prompts:
        count = -(-len(prompt) // pool.block_size)
        sequences.append(make_sequence(prompt, [blocks.pop() for _ in range(count)]))
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    while active := [index for index, prompt in enumerate(prompts) if done[index] < len(prompt)]:
        ends = [min(done[index] + chunks[index], len(prompts[index])) for index in active]
        spans = [Span(sequences[index], done[index], end) for index, end in zip(active, ends, strict=True)]
        for index, end, rows in zip(active, ends, run_spans(decoder, pool, spans), strict=True):
            logits[index].append(rows)
            done[index] = end
    return [torch.cat(rows) for rows in logits]
