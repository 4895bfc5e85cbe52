"""A runner made from a config: weights, kernels, the pool's memory, and the colder tiers beside it.

Owns the order in which they are made. After `load_runner` has returned everything is compiled, so that no
step pays for it.
"""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from engine.batch import blank_batch
from engine.constraints import Constraints
from engine.device_memory import bytes_left, measure_use
from engine.disk_store import DiskStore, record_bytes
from engine.fingerprint import fingerprint
from engine.graphs import GraphedDecoder, record_graph
from engine.host_pool import HostPool
from engine.info import EngineInfo
from engine.kv_pool import LAYOUT_VERSION, KVPool, bytes_per_block
from engine.messages import EngineConfig
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.move_rates import measure_rates
from engine.mover import DEMOTION_SHARE, BlockMover
from engine.moves import ColderTiers
from engine.runner import ModelRunner
from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.host_sampler import HostSampler
from engine.sampling.rows import demanding_row
from engine.sampling.sampler import Sampler
from engine.speculation.load import load_draft, make_proposer
from engine.vocabulary import read_vocabulary
from engine.weights import load
from kernels import Kernels
from kernels.byte_cache import HEAD_MULTIPLE, takes_bytes

__all__ = ["DTYPES", "load_runner", "load_tiers"]

_MEASURED_PROMPT = 128  # tokens

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_runner(config: EngineConfig) -> ModelRunner:
    """Load the model, take the pool's memory, compile the kernels. May set the process's number of threads.

    Raises ValueError or OSError when the model cannot be loaded or run, or the pool would hold no block.
    """
    _check_device(config)
    device, dtype = torch.device(config.device), DTYPES[config.dtype]
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    products = config.products
    if products == "auto":
        products = Kernels.best_products(config.device, dtype)
    kernels = Kernels.for_device(config.device, products, deterministic=config.deterministic)
    model, weights = load(config.model, dtype, packed=products == "packed")
    if config.max_context is not None and config.max_context > model.context_length:
        raise ValueError(
            f"max_context is {config.max_context}, more than the {model.context_length} that the model can"
        )
    draft = load_draft(config, model, dtype)
    # The draft's keys and values lie beside the model's, in the same blocks.
    models = [model] if draft is None else [model, draft.model]
    kv_dtype = _kv_dtype(config, models, dtype, products)
    mark = b""
    if config.disk_folder is not None:
        mark = fingerprint(
            model,
            weights,
            products=products,
            block_size=config.block_size,
            kv_dtype=kv_dtype,
            layout_version=LAYOUT_VERSION,
        )
    decoder = Decoder(model, {name: tensor.to(device) for name, tensor in weights.items()}, kernels)
    sampler = _make_sampler(kernels, model)
    block_bytes = sum(bytes_per_block(each, config.block_size, kv_dtype) for each in models)
    if config.memory_utilization is not None:
        config = _measured(config, decoder, sampler, _make_pool(model, config, kernels, 1, kv_dtype))
    pool = _make_pool(model, config, kernels, _num_blocks(config, block_bytes), kv_dtype)
    info = EngineInfo(
        context_length=min(model.context_length, config.max_context or model.context_length),
        vocab_size=model.vocab_size,
        block_size=config.block_size,
        num_blocks=pool.num_blocks,
        kv_bytes=pool.num_blocks * bytes_per_block(model, config.block_size, kv_dtype),
        device=config.device,
        dtype=config.dtype,
    )
    _compile(decoder, sampler, pool)
    proposer = make_proposer(config, draft, pool, kernels, sampler)
    graphs = _record(decoder, pool, config, info) if config.device == "cuda" else None
    return ModelRunner(
        info,
        decoder,
        pool,
        sampler=sampler,
        fingerprint=mark,
        proposer=proposer,
        graphs=graphs,
        grammars=_grammars(config, info),
    )


def load_tiers(config: EngineConfig, runner: ModelRunner) -> ColderTiers | None:
    """Take the host tier's memory and the disk tier's folder, and measure what moving blocks costs.

    None if the config asks for neither. Says on standard error how many blocks of the disk are of no use. To
    be called before the runner's first step: it overwrites blocks of the pool. Raises ValueError when a tier
    would hold no block, the machine will not give the memory, or the folder cannot be used.
    """
    if not config.host_bytes and config.disk_folder is None:
        return None
    host = _take_host(config, runner.pool) if config.host_bytes else None
    folder = None if config.disk_folder is None else Path(config.disk_folder)
    disk = None
    try:
        if folder is not None:
            disk = _open_disk(config, runner, folder)
        rates = measure_rates(runner.pool, host, folder)
    except OSError as error:
        if disk is not None:
            disk.close()
        raise ValueError(f"the disk tier's folder {folder} cannot be used: {error}") from None
    return ColderTiers(
        num_host_blocks=host.num_blocks if host else 0,
        num_disk_blocks=disk.num_blocks if disk else 0,
        records=disk.records if disk else {},
        fingerprint=runner.fingerprint,
        mover=BlockMover(
            runner.pool,
            host,
            disk,
            # A GPU's copies take nothing from its steps.
            demotion_share=1.0 if config.device == "cuda" else DEMOTION_SHARE,
        ),
        bytes_per_block=runner.pool.bytes_per_block,
        rates=rates,
        num_damaged=disk.num_damaged if disk else 0,
        prefill_rate=_MEASURED_PROMPT / runner.measure_steps((_MEASURED_PROMPT,))[_MEASURED_PROMPT],
    )


def _check_device(config: EngineConfig) -> None:
    """Raise ValueError for what the device does not have, and for a device that is not there."""
    if config.device != "cpu" and config.kv_dtype == "int8":
        raise ValueError('kv_dtype is "int8", which only the CPU has: set it to "full" on a GPU')
    if config.device != "cuda" and config.memory_utilization is not None:
        raise ValueError(
            f"memory_utilization is {config.memory_utilization}, which only a GPU has: say kv_bytes instead"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            'device is "cuda", but torch finds none here: set it to "cpu", or see README on torch'
        )


def _grammars(config: EngineConfig, info: EngineInfo) -> Constraints | None:
    if config.vocabulary is None:
        return None
    return Constraints(partial(read_vocabulary, Path(config.vocabulary)), info.vocab_size)


def _take_host(config: EngineConfig, pool: KVPool) -> HostPool:
    num_blocks = config.host_bytes // pool.bytes_per_block
    if num_blocks == 0:
        raise ValueError(
            f"host_bytes is {config.host_bytes}, but one block takes {pool.bytes_per_block} bytes: raise it, "
            "or set it to 0 for no host tier"
        )
    try:
        return HostPool(num_blocks, pool.bytes_per_block, is_pinned=config.device == "cuda")
    except RuntimeError:
        raise ValueError(
            f"host_bytes is {config.host_bytes}, which this machine will not give: lower it"
        ) from None


def _open_disk(config: EngineConfig, runner: ModelRunner, folder: Path) -> DiskStore:
    block_bytes = runner.pool.bytes_per_block + record_bytes(config.block_size)
    num_blocks = config.disk_bytes // block_bytes
    if num_blocks == 0:
        raise ValueError(
            f"disk_bytes is {config.disk_bytes}, but one block takes {block_bytes} bytes on disk: raise it"
        )
    disk = DiskStore(
        folder,
        runner.fingerprint,
        num_blocks=num_blocks,
        bytes_per_block=runner.pool.bytes_per_block,
        block_size=config.block_size,
    )
    if disk.num_damaged or disk.num_foreign:
        print(
            f"stemma: of the blocks in {folder}, {disk.num_damaged} were damaged and {disk.num_foreign} of "
            "another model: they are dropped",
            file=sys.stderr,
        )
    return disk


def _kv_dtype(
    config: EngineConfig, models: Iterable[ModelConfig], dtype: torch.dtype, products: str
) -> torch.dtype:
    """The type of the models' keys and values. Raises ValueError for 8 bits where there are none."""
    unfit = [model.head_dim for model in models if not takes_bytes(model.head_dim)]
    if config.kv_dtype == "full":
        return dtype
    if config.kv_dtype == "auto":
        return torch.int8 if products == "int8" and not unfit else dtype
    if unfit:
        raise ValueError(
            f'kv_dtype is "int8", but heads have {unfit[0]} dimensions, which is no multiple of '
            f'{HEAD_MULTIPLE}: set it to "full"'
        )
    return torch.int8


@torch.inference_mode()
def _measured(config: EngineConfig, decoder: Decoder, sampler: Sampler, pool: KVPool) -> EngineConfig:
    """With the bytes that the largest step leaves for keys and values. The pool has one block at least."""
    assert config.memory_utilization is not None, "there is nothing to measure for"

    def run_largest_step() -> None:
        batch = blank_batch(config.max_batch_tokens, pool.block_size, pool.device)
        logits = decoder.logits(decoder.forward(batch, pool)[-config.max_sequences :])
        sampler.sample(logits, [demanding_row()] * len(logits))

    left = bytes_left(measure_use(pool.device, run_largest_step), config.memory_utilization)
    return msgspec.structs.replace(config, kv_bytes=left)


def _num_blocks(config: EngineConfig, block_bytes: int) -> int:
    num_blocks = config.kv_bytes // block_bytes
    if num_blocks == 0:
        raise ValueError(f"kv_bytes is {config.kv_bytes}, but one block takes {block_bytes} bytes")
    return num_blocks


def _make_pool(
    model: ModelConfig, config: EngineConfig, kernels: Kernels, num_blocks: int, dtype: torch.dtype
) -> KVPool:
    try:
        return KVPool(
            model,
            num_blocks,
            config.block_size,
            dtype=dtype,
            device=torch.device(config.device),
            operations=kernels,
        )
    except RuntimeError:
        raise ValueError(
            f"kv_bytes is {config.kv_bytes}, which this machine will not give: lower it"
        ) from None


@torch.inference_mode()
def _compile(decoder: Decoder, sampler: Sampler, pool: KVPool) -> None:
    """Run one token that stores nothing: compiled kernels depend on types, not on sizes."""
    logits = decoder.logits(decoder.forward(blank_batch(1, pool.block_size, pool.device), pool))
    sampler.sample(logits, [demanding_row()])


def _make_sampler(kernels: Kernels, model: ModelConfig) -> Sampler:
    """Raises ValueError for a vocabulary that the device cannot draw from."""
    return HostSampler() if kernels.sampling is None else DeviceSampler(kernels.sampling, model.vocab_size)


@torch.inference_mode()
def _record(decoder: Decoder, pool: KVPool, config: EngineConfig, info: EngineInfo) -> GraphedDecoder:
    """Raises ValueError when the GPU has no memory for the recordings."""
    try:
        return GraphedDecoder(
            decoder,
            pool,
            max_sequences=config.max_sequences,
            max_context=info.max_request_tokens,
            record=record_graph(torch.cuda.graph_pool_handle()),
            progress=lambda sizes: tqdm(sizes, desc="recording decoding steps", unit="size"),
        )
    except torch.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info()
        raise ValueError(
            f"recording steps of up to {config.max_sequences} sequences takes more than the {free} bytes "
            f"left of the GPU's {total}: lower max_sequences, or kv_bytes or memory_utilization"
        ) from None
