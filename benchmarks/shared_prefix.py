"""What it saves to read a shared prefix once: attention of one layer, for sequences that decode together.

python -m benchmarks.shared_prefix --sequences 1,8,32 --shared 512,1024,2048 --own 128

Every sequence has the shared tokens and then its own. Both ways are timed in turns; what they come to is the
same, bit for bit.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, replace

import torch

from benchmarks.flags import natural, positive
from benchmarks.program import run
from kernels import Kernels
from kernels.partitions import PARTITION_TOKENS, find_leaders

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16  # SmolLM2-135M's
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of paged attention, in its order."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    leaders: torch.Tensor
    scale: float

    def run(self, kernels: Kernels) -> torch.Tensor:
        """The attention of every sequence's last token."""
        return kernels.paged_attention(*(getattr(self, name) for name in self.__slots__))

    def num_partitions_read(self) -> int:
        """Whole partitions, those of one leader once."""
        if not self.leaders.shape[1]:
            return int((self.context_lens // PARTITION_TOKENS).sum())
        return sum(len(column.unique()) for column in self.leaders.T)


def make_case(num_sequences: int, num_shared: int, num_own: int) -> Case:
    """Blocks lie in the pool as chance has it."""
    generator = torch.Generator().manual_seed(1)
    num_common, num_each = num_shared // BLOCK_SIZE, -(-num_own // BLOCK_SIZE)
    num_blocks = num_common + num_sequences * num_each
    order = torch.randperm(num_blocks, generator=generator).int()
    common, own = order[:num_common], order[num_common:].view(num_sequences, num_each)
    tables = torch.cat([common.expand(num_sequences, -1), own], dim=1).contiguous()
    context = num_common * BLOCK_SIZE + num_own
    size = (num_blocks, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    return Case(
        torch.randn(num_sequences, NUM_HEADS, HEAD_DIM, generator=generator).to(DTYPE),
        torch.randn(size, generator=generator).to(DTYPE),
        torch.randn(size, generator=generator).to(DTYPE).transpose(2, 3).contiguous(),
        tables,
        torch.full((num_sequences,), context, dtype=torch.int32),
        torch.arange(num_sequences + 1, dtype=torch.int32),
        torch.from_numpy(find_leaders(tables.numpy(), context, BLOCK_SIZE)),
        HEAD_DIM**-0.5,
    )


def compare(kernels: Kernels, shared: Case, num_rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds without and with sharing, in turns."""
    alone = replace(shared, leaders=shared.leaders[:, :0])
    assert torch.equal(shared.run(kernels), alone.run(kernels)), "sharing changes no bit"
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(num_rounds):
        for case, milliseconds in zip((alone, shared), times, strict=True):
            started = time.perf_counter()
            case.run(kernels)
            milliseconds.append((time.perf_counter() - started) * 1000)
    return times


def _counts(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="stemma bench shared-prefix", description="Attention of one layer over a shared prefix."
    )
    parser.add_argument("--sequences", type=_counts, default=[1, 8, 32])
    parser.add_argument("--shared", type=_counts, default=[512, 1024, 2048], help="tokens, whole blocks")
    parser.add_argument("--own", type=natural, default=128, help="tokens of each sequence's own")
    parser.add_argument("--rounds", type=positive, default=60)
    options = parser.parse_args()
    kernels = Kernels.cpu()
    partition_bytes = 2 * PARTITION_TOKENS * NUM_KV_HEADS * HEAD_DIM * DTYPE.itemsize
    print("medians (minima) in ms; KV read of whole partitions, in kB")
    for num_sequences in options.sequences:
        for num_shared in options.shared:
            case = make_case(num_sequences, num_shared, options.own)
            alone, together = compare(kernels, case, options.rounds)
            middle, middle_together = statistics.median(alone), statistics.median(together)
            unshared = replace(case, leaders=case.leaders[:, :0])
            num_bytes = [each.num_partitions_read() * partition_bytes // 1000 for each in (unshared, case)]
            print(
                f"{num_sequences:3} sequences, {num_shared:5} shared + {options.own}: "
                f"{middle:7.3f} ({min(alone):.3f}) alone, "
                f"{middle_together:7.3f} ({min(together):.3f}) together, "
                f"x{middle / middle_together:.2f} (x{min(alone) / min(together):.2f}); "
                f"{num_bytes[0]} -> {num_bytes[1]} kB"
            )


if __name__ == "__main__":
    run(main)
