"""The engine over the GPU's operations, recordings and sampler included: the CPU's answers, one wait a step.

Without a GPU Triton's kernels run in its interpreter, what runs again stands for a recorded graph, and
`other_device.py` for the device. Draws that filters cut are compared where one token is left: which of
several a number draws may differ.
"""

import warnings
from array import array
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from engine.batch import Batch
from engine.core import EngineCore
from engine.graphs import Forward, GraphedDecoder, Record, record_graph
from engine.info import EngineInfo
from engine.kv_pool import KVPool
from engine.messages import Accepted, Submit, TokenEvents, TokenLogprob
from engine.models.decoder import Decoder
from engine.runner import ModelRunner
from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.host_sampler import HostSampler
from engine.sampling.sampler import Sampler
from engine.scheduler import Limits
from engine.sequence import BeamParams, SamplingParams
from engine.weights import load
from kernels import Kernels
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.other_device import DEVICE, Watch, read, watched
from tests.engine.test_graphs import record_eagerly

SHARED = [(3 * place + 1) % 101 for place in range(270)]  # more than a partition
REQUESTS: list[tuple[list[int], dict[str, Any]]] = [
    ([*SHARED, 5, 6, 7], {"temperature": 0.0, "logprobs": 2}),
    ([*SHARED, 9], {"temperature": 1.0, "seed": 5, "logprobs": 3}),
    ([*SHARED[:100], 8, 8], {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.3}),
    ([42], {"temperature": 0.9, "seed": 7, "presence_penalty": 0.5, "logit_bias": {3: 4.0, 5: -100.0}}),
    ([*range(1, 60)], {"beam": BeamParams(width=3), "logprobs": 1}),
    ([*range(20, 95)], {"temperature": 0.0, "prompt_logprobs": 2}),
    ([7, 8, 9], {"temperature": 2.0, "top_k": 1, "top_p": 0.4, "min_p": 0.1, "logprobs": 0}),
    ([7, 8, 9], {"temperature": 1.5, "min_tokens": 4, "stop_token_ids": tuple(range(0, 100, 2)), "seed": 3}),
]


@dataclass
class Told:
    """What was told of one choice."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


def core_over(decoder: Forward, pool: KVPool, sampler: Sampler, record: Record | None = None) -> EngineCore:
    """A small pool full of NaN, so that some sequences give way, and steps that mix prompts and answers."""
    for tensor in (pool.keys, pool.values):
        tensor.fill_(torch.nan)
    info = EngineInfo(
        context_length=512,
        vocab_size=101,
        block_size=16,
        num_blocks=pool.num_blocks,
        kv_bytes=pool.num_blocks * pool.bytes_per_block,
        device=pool.device.type,
        dtype="float32",
    )
    graphs = None
    if record is not None:
        graphs = GraphedDecoder(decoder, pool, max_sequences=4, max_context=512, record=record)
    runner = ModelRunner(info, decoder, pool, sampler=sampler, graphs=graphs)  # type: ignore[arg-type]
    return EngineCore(runner, Limits(max_batch_tokens=96, max_sequences=4))


def core_on_cpu(folder: Path) -> EngineCore:
    model, weights = load(str(folder), torch.float32)
    kernels = Kernels.reference()
    pool = KVPool(model, 40, 16, dtype=torch.float32, device=torch.device("cpu"), operations=kernels)
    return core_over(Decoder(model, weights, kernels), pool, HostSampler())


@torch.inference_mode()
def core_on_gpu(folder: Path) -> EngineCore:
    model, weights = load(str(folder), torch.float32)
    kernels, device = Kernels.triton(), torch.device("cuda")
    decoder = Decoder(model, {name: tensor.to(device) for name, tensor in weights.items()}, kernels)
    pool = KVPool(model, 40, 16, dtype=torch.float32, device=device, operations=kernels)
    assert kernels.sampling is not None
    sampler = DeviceSampler(kernels.sampling, model.vocab_size)
    return core_over(decoder, pool, sampler, record_graph(torch.cuda.graph_pool_handle()))


class Away:
    """A decoder on the other device."""

    def __init__(self, decoder: Decoder, watch: Watch) -> None:
        self._forward = watch.on_device(decoder.forward)
        self.logits = watch.on_device(decoder.logits)

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        tensors = {each.name: read(getattr(batch, each.name)) for each in fields(batch)}
        hidden: torch.Tensor = self._forward(Batch(**tensors), _Held(read(pool.keys), read(pool.values)))
        return hidden


class _Held(NamedTuple):
    keys: torch.Tensor
    values: torch.Tensor


@torch.inference_mode()
def core_on_other_device(watch: Watch, folder: Path) -> EngineCore:
    model, weights = load(str(folder), torch.float32)
    kernels = Kernels.triton()
    decoder = Away(Decoder(model, weights, kernels), watch)
    operations = replace(kernels, copy_blocks=watch.on_device(kernels.copy_blocks))
    pool = KVPool(model, 40, 16, dtype=torch.float32, device=DEVICE, operations=operations)
    assert kernels.sampling is not None
    sampling = replace(
        kernels.sampling,
        adjust_logits=watch.on_device(kernels.sampling.adjust_logits),
        sample=watch.on_device(kernels.sampling.sample),
    )
    return core_over(decoder, pool, DeviceSampler(sampling, model.vocab_size), record_eagerly)


def answers(core: EngineCore) -> dict[tuple[str, int], Told]:
    for place, (prompt, sampling) in enumerate(REQUESTS):
        accepted = core.submit(
            Submit(
                request_id=f"request-{place}",
                prompt=array("i", prompt).tobytes(),
                sampling=SamplingParams(max_tokens=4, **sampling),
                namespace=b"t",
                num_choices=2 if place < 2 else 1,
            )
        )
        assert isinstance(accepted, Accepted)
    told: dict[tuple[str, int], Told] = {}
    while core.has_work:
        for message in core.step():
            assert isinstance(message, TokenEvents)
            for event in message.events:
                choice = told.setdefault((event.request_id, event.choice), Told())
                choice.token_ids += event.token_ids
                choice.logprobs += event.logprobs or []
                choice.prompt_logprobs += event.prompt_logprobs or []
        core.scheduler.check_invariants()
    return told


def assert_alike(found: dict[tuple[str, int], Told], expected: dict[tuple[str, int], Told]) -> None:
    assert len(expected) == len(REQUESTS) + 2
    for name, answer in expected.items():
        assert found[name].token_ids == answer.token_ids
        for one, other in (
            (found[name].logprobs, answer.logprobs),
            (found[name].prompt_logprobs, answer.prompt_logprobs),
        ):
            assert [each.logprob for each in one] == pytest.approx([each.logprob for each in other], abs=1e-3)
            for each, known in zip(one, other, strict=True):
                assert [value for _, value in each.top] == pytest.approx(
                    [value for _, value in known.top], abs=1e-3
                )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU's own test runs")
def test_the_gpus_path_says_what_the_cpus_says_and_waits_once_a_step(tmp_path: Path) -> None:
    # it norms heads, and is Llama's else, with which the check for GPUs runs
    folder = write_checkpoint(random_model("qwen3", max_position_embeddings=512), tmp_path)
    expected = answers(core_on_cpu(folder))

    with watched() as watch:
        core = core_on_other_device(watch, folder)
        watch.waits.clear()
        found = answers(core)

    assert_alike(found, expected)
    assert sum(len(answer.token_ids) for answer in expected.values()) > 30
    assert sum(len(answer.logprobs) for answer in expected.values()) > 16
    assert len(expected["request-5", 0].prompt_logprobs) == 74
    assert core.scheduler.counters.num_cached_tokens > len(SHARED)
    assert {wait.split(":")[0] for wait in watch.waits} == {"copy to the host at engine/transfer.py"}
    assert len(watch.waits) == core.stats().num_steps


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_gpu_says_what_the_cpu_says_and_is_waited_for_once_a_step(family: str, tmp_path: Path) -> None:
    folder = write_checkpoint(random_model(family, max_position_embeddings=512), tmp_path)
    expected = answers(core_on_cpu(folder))
    answers(core_on_gpu(folder))  # compiles what runs
    core = core_on_gpu(folder)

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            found = answers(core)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert_alike(found, expected)
    assert sum("synchronizing" in str(wait.message) for wait in waits) == core.stats().num_steps
