"""The forward pass of a step on one device: copies, decoder, sampler.

Owns the decoder and the pool, and wires them to the kernels. Decides nothing: a step says what is computed,
and the sampler what is drawn. After `load_runner` has returned everything is compiled, so that no step pays
for it. `load_tiers` puts the colder tiers beside the pool.
"""

import sys
import time
from pathlib import Path

import torch

from engine.batch import Batch, build_batch
from engine.disk_store import DiskStore, record_bytes
from engine.fingerprint import fingerprint
from engine.host_pool import HostPool
from engine.kv_pool import LAYOUT_VERSION, KVPool, bytes_per_block
from engine.messages import EngineConfig, EngineInfo
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.move_rates import measure_rates
from engine.mover import DEMOTION_SHARE, BlockMover
from engine.moves import ColderTiers
from engine.sampling.sampler import sample
from engine.step import Step, StepResult
from engine.weights import load
from kernels import Kernels

__all__ = ["ModelRunner", "load_runner", "load_tiers"]

_MEASURED_TOKENS = 128

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ModelRunner:
    """Runs steps, one after the other, in the thread that built it.

    `fingerprint` is empty unless the engine has a disk tier.
    """

    def __init__(self, info: EngineInfo, decoder: Decoder, pool: KVPool, fingerprint: bytes) -> None:
        self.info = info
        self.pool = pool
        self.fingerprint = fingerprint
        self._decoder = decoder
        self._device = torch.device(info.device)

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Changes the blocks of the step's copies and spans, and nothing else."""
        self.pool.copy(step.copies)
        if not step.spans:
            return StepResult(())
        batch = build_batch(step, self.pool.block_size, self._device)
        hidden = self._decoder.forward(batch, self.pool)
        drawing = [span.sequence for span in step.spans if span.draws]
        if not drawing:
            return StepResult(())
        logits = self._decoder.logits(hidden[batch.drawing_rows])
        return StepResult(sample(logits, drawing))

    @torch.inference_mode()
    def measure_prefill(self) -> float:
        """Prompt tokens a second that a step computes. Stores nothing."""
        batch = _blank_batch(_MEASURED_TOKENS, self.pool.block_size, self._device)
        seconds = []
        for _ in range(2):  # the first one takes the memory that both need
            started = time.perf_counter()
            self._decoder.forward(batch, self.pool).sum().item()
            seconds.append(time.perf_counter() - started)
        return _MEASURED_TOKENS / min(seconds)


def load_runner(config: EngineConfig) -> ModelRunner:
    """Load the model, take the pool's memory, compile the kernels. May set the process's number of threads.

    Raises ValueError or OSError when the model cannot be loaded or run, or the pool would hold no block.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            'device is "cuda", but torch finds none here: set it to "cpu", or see README on torch'
        )
    device, dtype = torch.device(config.device), DTYPES[config.dtype]
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    kernels = Kernels.for_device(config.device)
    model, weights = load(config.model, dtype)
    if config.max_context is not None and config.max_context > model.context_length:
        raise ValueError(
            f"max_context is {config.max_context}, more than the {model.context_length} that the model can"
        )
    pool = _take_pool(model, config, kernels)
    mark = b""
    if config.disk_folder is not None:
        mark = fingerprint(
            model,
            weights,
            block_size=config.block_size,
            kv_dtype=dtype,
            layout_version=LAYOUT_VERSION,
        )
    decoder = Decoder(model, {name: tensor.to(device) for name, tensor in weights.items()}, kernels)
    info = EngineInfo(
        context_length=min(model.context_length, config.max_context or model.context_length),
        vocab_size=model.vocab_size,
        block_size=config.block_size,
        num_blocks=pool.num_blocks,
        kv_bytes=pool.num_blocks * bytes_per_block(model, config.block_size, dtype),
        device=config.device,
        dtype=config.dtype,
    )
    _compile(decoder, pool, device)
    return ModelRunner(info, decoder, pool, mark)


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
        prefill_rate=runner.measure_prefill(),
    )


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


def _take_pool(model: ModelConfig, config: EngineConfig, kernels: Kernels) -> KVPool:
    dtype = DTYPES[config.dtype]
    block_bytes = bytes_per_block(model, config.block_size, dtype)
    num_blocks = config.kv_bytes // block_bytes
    if num_blocks == 0:
        raise ValueError(f"kv_bytes is {config.kv_bytes}, but one block takes {block_bytes} bytes")
    try:
        return KVPool(
            model,
            num_blocks,
            config.block_size,
            dtype=dtype,
            device=torch.device(config.device),
            copy_blocks=kernels.copy_blocks,
        )
    except RuntimeError:
        raise ValueError(
            f"kv_bytes is {config.kv_bytes}, which this machine will not give: lower it"
        ) from None


@torch.inference_mode()
def _compile(decoder: Decoder, pool: KVPool, device: torch.device) -> None:
    """Run one token that stores nothing: compiled kernels depend on types, not on sizes."""
    decoder.logits(decoder.forward(_blank_batch(1, pool.block_size, device), pool))


def _blank_batch(num_tokens: int, block_size: int, device: torch.device) -> Batch:
    """One prompt of zeros that reads block 0 over and over, and stores nothing."""
    counts = torch.arange(num_tokens, dtype=torch.int32, device=device)
    num_blocks = -(-num_tokens // block_size)
    return Batch(
        token_ids=counts * 0,
        positions=counts,
        slot_mapping=counts * 0 - 1,
        block_tables=torch.zeros(1, num_blocks, dtype=torch.int32, device=device),
        context_lens=counts[-1:] + 1,
        cu_seqlens_q=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        drawing_rows=counts[-1:].long(),
    )
