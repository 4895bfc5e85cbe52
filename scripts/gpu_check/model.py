"""A model of random weights, its pool, and sequences that hold blocks of it."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from tqdm import tqdm

from engine.graphs import GraphedDecoder, Record, record_graph
from engine.info import EngineInfo
from engine.kv_pool import KVPool, bytes_per_block
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.runner import ModelRunner
from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.host_sampler import HostSampler
from engine.sampling.sampler import Sampler
from engine.sequence import SamplingParams, Sequence
from engine.step import Span, Step
from engine.weights.names import Weights, expected_shapes
from kernels import Kernels
from prefix_cache.lease import Lease
from prefix_cache.node import Node
from prefix_cache.plan import BlockId
from scripts.gpu_check.cases import seeded
from scripts.gpu_check.shapes import Load, Shapes

__all__ = ["Model", "decode_step", "make_model", "make_weights", "prompt_step"]

_POOL_SHARE = 0.75  # of the memory that is free beside the weights


@dataclass(frozen=True, slots=True)
class Model:
    """One model over one pool, which holds random keys and values."""

    config: ModelConfig
    decoder: Decoder
    graphs: GraphedDecoder  # its decoding steps, recorded
    pool: KVPool
    info: EngineInfo
    sampler: Sampler

    def runner(self, *, is_recorded: bool) -> ModelRunner:
        """What carries steps out."""
        return ModelRunner(
            self.info,
            self.decoder,
            self.pool,
            sampler=self.sampler,
            graphs=self.graphs if is_recorded else None,
        )

    def lacks(self, load: Load, num_more: int = 0) -> str | None:
        """Why the pool does not hold some sequences beside so many blocks, if so."""
        num_blocks = load.num_blocks(self.pool.block_size) + num_more
        if num_blocks <= self.pool.num_blocks:
            return None
        wanted, there = (each * self.pool.bytes_per_block for each in (num_blocks, self.pool.num_blocks))
        return f"keys and values take {wanted >> 30} GiB, and there are {there >> 30}"


def make_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """So large that what goes through a matrix keeps its size; norms are near 1."""
    generator, weights = seeded(device), Weights()
    for name, shape in expected_shapes(config).items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        mean, deviation = (0.0, shape[-1] ** -0.5) if len(shape) == 2 else (1.0, 0.1)
        weights[name] = tensor.normal_(mean, deviation, generator=generator)
    return weights


def make_model(shapes: Shapes, device: torch.device, kernels: Kernels) -> Model:
    """The pool has room for the greatest load that memory has room for."""
    config, dtype = shapes.model, shapes.step_dtype
    decoder = Decoder(config, make_weights(config, dtype, device), kernels)
    pool = _make_pool(shapes, device, kernels)
    info = EngineInfo(
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        block_size=shapes.block_size,
        num_blocks=pool.num_blocks,
        kv_bytes=pool.num_blocks * pool.bytes_per_block,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
    )
    with torch.inference_mode():
        graphs = GraphedDecoder(
            decoder,
            pool,
            max_sequences=max(shapes.steps.batches),
            max_context=max(shapes.steps.contexts),
            record=_recorder(device),
            progress=_progress,
        )
    sampling = kernels.sampling
    sampler = HostSampler() if sampling is None else DeviceSampler(sampling, config.vocab_size)
    return Model(config, decoder, graphs, pool, info, sampler)


def decode_step(load: Load, block_size: int, first_block: int = 0) -> Step:
    """The last token of each sequence, none of which share a block. No block before the first is used."""
    num_blocks = -(-load.context // block_size)
    starts = range(first_block, first_block + load.num_sequences * num_blocks, num_blocks)
    sequences = [_make_sequence(load.context, range(start, start + num_blocks)) for start in starts]
    return Step(tuple(Span(each, load.context - 1, load.context) for each in sequences))


def prompt_step(start: int, end: int, block_size: int) -> Step:
    """A part of one prompt in the first blocks."""
    return Step((Span(_make_sequence(end, range(-(-end // block_size))), start, end),))


def _make_sequence(num_tokens: int, blocks: Iterable[int]) -> Sequence:
    """One that holds these blocks; no tree knows it."""
    node = Node(b"")
    held = [BlockId(block) for block in blocks]
    return Sequence(
        request_id="request",
        choice=0,
        tokens=array("i", [7 * position % 89 for position in range(num_tokens)]),
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        namespace=b"",
        lease=Lease(b"", node, num_matched=0, num_committed=0, started=0.0, blocks=held),
    )


def _make_pool(shapes: Shapes, device: torch.device, kernels: Kernels) -> KVPool:
    steps, size = shapes.steps, shapes.block_size
    wanted = [load.num_blocks(size) for load in steps.decodes]
    # Three prompts are cached at once, and moved blocks have places to go to.
    least = max(4 * -(-steps.asked // size), 2 * steps.num_moved, -(-max(steps.prompts) // size))
    most = max(wanted)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what nobody uses any more counts as free
        free, _ = torch.cuda.mem_get_info(device)
        most = int(free * _POOL_SHARE) // bytes_per_block(shapes.model, size, shapes.step_dtype)
    num_blocks = max([least, *(each for each in wanted if each <= most)])
    pool = KVPool(shapes.model, num_blocks, size, dtype=shapes.step_dtype, device=device, operations=kernels)
    generator = seeded(device)
    for layer in pool.layers:
        for tensor in layer:
            tensor.normal_(generator=generator)
    return pool


def _recorder(device: torch.device) -> Record:
    return record_graph(torch.cuda.graph_pool_handle()) if device.type == "cuda" else _run_again


def _run_again(function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """In a recording's place where nothing can be recorded."""
    written = function().clone()
    return lambda: _write(written, function), written


def _write(target: torch.Tensor, function: Callable[[], torch.Tensor]) -> None:
    target.copy_(function())


def _progress(sizes: Iterable[int]) -> Iterable[int]:
    bar: Iterable[int] = tqdm(sizes, desc="recording decoding steps", unit="size", leave=False)
    return bar
