"""The forward pass of a step on one device: copies, decoder, sampler.

Owns the decoder and the pool, and wires them to the kernels. Decides nothing: a step says what is computed,
and the sampler what is drawn. After `load_runner` has returned everything is compiled, so that no step pays
for it.
"""

import torch

from engine.batch import Batch, build_batch
from engine.kv_pool import KVPool, bytes_per_block
from engine.messages import EngineConfig, EngineInfo
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.sampling.sampler import sample
from engine.step import Step, StepResult
from engine.weights import load
from kernels import Kernels

__all__ = ["ModelRunner", "load_runner"]

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ModelRunner:
    """Runs steps, one after the other, in the thread that built it."""

    def __init__(self, info: EngineInfo, decoder: Decoder, pool: KVPool) -> None:
        self.info = info
        self._decoder = decoder
        self._pool = pool
        self._device = torch.device(info.device)

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Changes the blocks of the step's copies and spans, and nothing else."""
        self._pool.copy(step.copies)
        if not step.spans:
            return StepResult(())
        batch = build_batch(step, self._pool.block_size, self._device)
        hidden = self._decoder.forward(batch, self._pool)
        drawing = [span.sequence for span in step.spans if span.draws]
        if not drawing:
            return StepResult(())
        logits = self._decoder.logits(hidden[batch.drawing_rows])
        return StepResult(sample(logits, drawing))


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
    return ModelRunner(info, decoder, pool)


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
    one = torch.ones(1, dtype=torch.int32, device=device)
    batch = Batch(
        token_ids=one * 0,
        positions=one * 0,
        slot_mapping=-one,
        block_tables=one[None] * 0,
        context_lens=one,
        cu_seqlens_q=torch.cat((one * 0, one)),
        drawing_rows=one.long() * 0,
    )
    decoder.logits(decoder.forward(batch, pool))
