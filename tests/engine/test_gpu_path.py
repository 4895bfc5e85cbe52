"""The engine over the GPU's operations, recordings included: the CPU's tokens.

Without a GPU Triton's kernels run in its interpreter, and what runs again stands for a recorded graph.
"""

from pathlib import Path

import pytest
import torch

from engine.core import EngineCore
from engine.graphs import GraphedDecoder
from engine.info import EngineInfo
from engine.kv_pool import KVPool
from engine.models.decoder import Decoder
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.weights import load
from kernels import Kernels
from tests.engine.answers import Answer, drain, submit
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.test_graphs import record_eagerly

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHARED = [(3 * place + 1) % 101 for place in range(270)]  # more than a partition
PROMPTS = [[*SHARED, 5, 6, 7], [*SHARED, 9], [*SHARED[:100], 8, 8], [42], [*range(1, 60)]]


@torch.inference_mode()
def core_over(kernels: Kernels, device: torch.device, folder: Path, *, is_recorded: bool) -> EngineCore:
    """A small pool, so that some sequences give way, and steps that mix prompts and answers."""
    model, weights = load(str(folder), torch.float32)
    decoder = Decoder(model, {name: tensor.to(device) for name, tensor in weights.items()}, kernels)
    pool = KVPool(model, 40, 16, dtype=torch.float32, device=device, operations=kernels)
    for tensor in (pool.keys, pool.values):
        tensor.fill_(torch.nan)
    info = EngineInfo(
        context_length=512,
        vocab_size=model.vocab_size,
        block_size=16,
        num_blocks=pool.num_blocks,
        kv_bytes=pool.num_blocks * pool.bytes_per_block,
        device=device.type,
        dtype="float32",
    )
    graphs = None
    if is_recorded:
        graphs = GraphedDecoder(decoder, pool, max_sequences=4, max_context=512, record=record_eagerly)
    runner = ModelRunner(info, decoder, pool, graphs=graphs)
    return EngineCore(runner, Limits(max_batch_tokens=96, max_sequences=4))


def answers(core: EngineCore) -> dict[tuple[str, int], Answer]:
    for place, prompt in enumerate(PROMPTS):
        submit(core, f"request-{place}", prompt, tokens=6, choices=2 if place == 0 else 1)
    return drain(core)


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # the latter norms heads
def test_the_gpus_path_says_what_the_cpus_says(family: str, tmp_path: Path) -> None:
    folder = write_checkpoint(random_model(family, max_position_embeddings=512), tmp_path)
    plain = core_over(Kernels.reference(), torch.device("cpu"), folder, is_recorded=False)
    on_gpu = core_over(Kernels.triton(), DEVICE, folder, is_recorded=True)

    expected, found = answers(plain), answers(on_gpu)

    assert len(expected) == len(PROMPTS) + 1
    assert sum(answer.num_certain for answer in expected.values()) > 24, "the comparison covers something"
    for name, answer in expected.items():
        certain = answer.num_certain
        assert found[name].token_ids[:certain] == answer.token_ids[:certain]
    assert on_gpu.scheduler.counters.num_cached_tokens > len(SHARED)
