"""The forward pass of a step on one device: copies, decoder, sampler.

Owns the decoder and the pool, and wires them to the kernels. Decides nothing: a step says what is computed,
and the sampler what is drawn. After `load_runner` has returned everything is compiled, so that no step pays
for it. `load_tiers` puts the colder tiers beside the pool.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch

from engine.batch import Batch, blank_batch, build_batch
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
from engine.sampling.rows import Row
from engine.sampling.sampler import report, sample
from engine.sequence import Sequence as TokenSequence
from engine.speculation.draft import DraftProposer
from engine.speculation.load import Draft, load_draft, make_proposer
from engine.step import Draw, Span, SpanResult, Step, StepResult
from engine.weights import load
from kernels import Kernels
from kernels.byte_cache import HEAD_MULTIPLE, takes_bytes

__all__ = ["ModelRunner", "load_runner", "load_tiers"]

_MEASURED_PROMPT = 128  # tokens
_WEIGHED_ROWS = 64  # of logits at a time: each takes as much memory as the vocabulary has entries

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Proposer(Protocol):
    """Guesses what sequences will say next."""

    def follow(self, step: Step) -> None:
        """A step is about to be carried out: proposals for it are asked for after this."""
        ...

    def propose(self, spans: Sequence[Span]) -> list[list[int]]:
        """For each span, at most `num_lookahead` tokens."""
        ...


class ModelRunner:
    """Runs steps, one after the other, in the thread that built it.

    `fingerprint` is empty unless the engine has a disk tier.
    """

    def __init__(
        self,
        info: EngineInfo,
        decoder: Decoder,
        pool: KVPool,
        *,
        fingerprint: bytes = b"",
        proposer: Proposer | None = None,
    ) -> None:
        self.info = info
        self.pool = pool
        self.fingerprint = fingerprint
        self._decoder = decoder
        self.proposal_seconds = 0.0  # what one proposed token costs beside its verification
        self._proposer = proposer
        self._device = torch.device(info.device)
        if isinstance(proposer, DraftProposer):
            self.proposal_seconds = proposer.measure()

    @property
    def decoder(self) -> Decoder:
        """The model, for those who measure it."""
        return self._decoder

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Changes the blocks of the step's copies and spans, and nothing else."""
        self.pool.copy(step.copies)
        if not step.spans:
            return StepResult(())
        proposed = self._propose(step)
        batch = build_batch(step.spans, self.pool.block_size, self._device, proposed)
        hidden = self._decoder.forward(batch, self.pool)
        draws = iter(self._draw(step.spans, proposed, hidden[batch.drawing_rows]))
        weighed = self._weigh(step.spans, batch, hidden)
        return StepResult(
            tuple(
                SpanResult(
                    _verified(list(islice(draws, len(ahead) + 1)), ahead) if span.draws else (),
                    len(ahead),
                    weighed.get(span, ()),
                )
                for span, ahead in zip(step.spans, proposed, strict=True)
            )
        )

    @torch.inference_mode()
    def measure_steps(self, sizes: Sequence[int]) -> dict[int, float]:
        """Seconds that steps of so many tokens of one prompt take. Stores nothing."""
        seconds = {}
        for num_tokens in sizes:
            batch = blank_batch(num_tokens, self.pool.block_size, self._device)
            times = []
            for _ in range(2):  # the first one takes the memory that both need
                started = time.perf_counter()
                hidden = self._decoder.forward(batch, self.pool)
                self._decoder.logits(hidden[batch.drawing_rows]).sum().item()
                times.append(time.perf_counter() - started)
            seconds[num_tokens] = min(times)
        return seconds

    def _propose(self, step: Step) -> list[list[int]]:
        spans = step.spans
        proposed: list[list[int]] = [[] for _ in spans]
        if self._proposer is None:
            return proposed
        self._proposer.follow(step)
        asked = [place for place, span in enumerate(spans) if span.num_lookahead]
        if asked:
            for place, ahead in zip(
                asked, self._proposer.propose([spans[each] for each in asked]), strict=True
            ):
                proposed[place] = ahead
        return proposed

    def _draw(self, spans: Sequence[Span], proposed: Sequence[list[int]], hidden: torch.Tensor) -> list[Draw]:
        """hidden: [num_rows, hidden_size], of the rows that `Batch.drawing_rows` names."""
        rows = [
            Row(span.sequence, tuple(ahead[:count]))
            for span, ahead in zip(spans, proposed, strict=True)
            if span.draws
            for count in range(len(ahead) + 1)
        ]
        return sample(self._decoder.logits(hidden), rows) if rows else []

    def _weigh(
        self, spans: Sequence[Span], batch: Batch, hidden: torch.Tensor
    ) -> dict[Span, tuple[Draw, ...]]:
        """Log-probabilities of the prompt tokens that follow the spans' tokens, where they are asked for."""
        weighed = {}
        for span, first in zip(spans, batch.cu_seqlens_q.tolist(), strict=False):
            sequence = span.sequence
            end = min(span.end, sequence.num_prompt_tokens - 1)
            if sequence.weighs_prompt and span.start < end:
                rows = hidden[first : first + end - span.start]
                weighed[span] = self._weigh_span(sequence, span.start + 1, rows)
        return weighed

    def _weigh_span(self, sequence: TokenSequence, position: int, hidden: torch.Tensor) -> tuple[Draw, ...]:
        """hidden: [num_tokens, hidden_size]; row i is weighed against the token at position + i."""
        draws: list[Draw] = []
        count = sequence.sampling.prompt_logprobs or 0
        for rows in torch.split(hidden, _WEIGHED_ROWS):
            start = position + len(draws)
            token_ids = sequence.tokens[start : start + len(rows)].tolist()
            logprobs = torch.log_softmax(self._decoder.logits(rows), dim=-1)
            draws += report(logprobs, token_ids, [count] * len(rows))
        return tuple(draws)


def _verified(draws: list[Draw], proposed: list[int]) -> tuple[Draw, ...]:
    """The draws that count: up to the first one that a proposal was wrong about.

    Each is the model's own, made as if all proposals before it had been drawn. So the text is the same as
    without proposals, seed for seed; and a proposal holds with just the probability that the model gives it,
    which is what rejection sampling does with a proposal that is certain (Leviathan et al., 2023).
    """
    num_held = 0
    while num_held < len(proposed) and draws[num_held].token_id == proposed[num_held]:
        num_held += 1
    return tuple(draws[: num_held + 1])


def load_runner(config: EngineConfig) -> ModelRunner:
    """Load the model, take the pool's memory, compile the kernels. May set the process's number of threads.

    Raises ValueError or OSError when the model cannot be loaded or run, or the pool would hold no block.
    """
    if config.device != "cpu" and config.kv_dtype == "int8":
        raise ValueError('kv_dtype is "int8", which only the CPU has: set it to "full" on a GPU')
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            'device is "cuda", but torch finds none here: set it to "cpu", or see README on torch'
        )
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
    kv_dtype = _kv_dtype(config, [model] if draft is None else [model, draft.model], dtype, products)
    pool = _take_pool(model, config, kernels, draft, kv_dtype)
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
    info = EngineInfo(
        context_length=min(model.context_length, config.max_context or model.context_length),
        vocab_size=model.vocab_size,
        block_size=config.block_size,
        num_blocks=pool.num_blocks,
        kv_bytes=pool.num_blocks * bytes_per_block(model, config.block_size, kv_dtype),
        device=config.device,
        dtype=config.dtype,
    )
    _compile(decoder, pool, device)
    proposer = make_proposer(config, draft, pool, kernels)
    return ModelRunner(info, decoder, pool, fingerprint=mark, proposer=proposer)


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


def _take_pool(
    model: ModelConfig, config: EngineConfig, kernels: Kernels, draft: Draft | None, dtype: torch.dtype
) -> KVPool:
    """The model's part of the blocks: the draft's, which comes beside it, is counted in what they cost."""
    block_bytes = bytes_per_block(model, config.block_size, dtype)
    if draft is not None:
        block_bytes += bytes_per_block(draft.model, config.block_size, dtype)
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
            operations=kernels,
        )
    except RuntimeError:
        raise ValueError(
            f"kv_bytes is {config.kv_bytes}, which this machine will not give: lower it"
        ) from None


@torch.inference_mode()
def _compile(decoder: Decoder, pool: KVPool, device: torch.device) -> None:
    """Run one token that stores nothing: compiled kernels depend on types, not on sizes."""
    decoder.logits(decoder.forward(blank_batch(1, pool.block_size, device), pool))
