"""How much of the memory for keys and values is wasted: paged, and by three ways of reserving it.

stemma bench waste --data AzureLLMInferenceTrace_conv.csv [--plot waste.svg]

All run the same requests from a pool of the same size, and are measured while requests wait for memory. The
paged one is the engine's own scheduler and cache. Beside them stand the figures of Kwon et al., "Efficient
memory management for large language model serving with PagedAttention" (SOSP 2023), figures 2 and 13.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.azure import Lengths, read_azure
from benchmarks.chart import line_chart
from benchmarks.flags import output_file, positive
from benchmarks.modelless import ask, make_core, prompt_of
from benchmarks.program import run
from benchmarks.reservation import POLICIES, Use, simulate

PAPER_USEFUL = {"Max": 0.204, "Pow2": 0.268, "Oracle": 0.382, "paged": 0.963}  # of all KV memory, OPT-13B
PAPER_BATCH = {"Max": 7.00, "Pow2": 9.81, "Oracle": 13.62, "paged": 30.42}  # ShareGPT


def measure_paged(requests: Sequence[Lengths], num_slots: int, block_size: int, longest: int) -> Use:
    """The engine's own scheduler and cache over the same requests."""
    core = make_core(num_slots, block_size, max_sequences=2048, context_length=longest)
    ask(core, ((prompt_of(number, each.num_prompt), each.num_answer) for number, each in enumerate(requests)))
    use, ledger = Use(), core.cache.device.ledger
    with tqdm(total=len(requests), unit="request") as bar:
        while core.has_work:
            core.step()
            if core.scheduler.num_waiting and ledger.num_held:
                use.note(
                    core.scheduler.held_tokens(),
                    ledger.num_held * block_size,
                    num_slots,
                    len(core.scheduler.running),
                )
            bar.update(core.scheduler.counters.num_finished - bar.n)
    return use


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(
        prog="stemma bench waste", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="Azure's conversation trace")
    parser.add_argument("--requests", type=positive, default=600)
    parser.add_argument("--slots", type=positive, default=24_576, help="tokens that the pool holds")
    parser.add_argument(
        "--longest", type=positive, default=2048, help="longer ones are left out, as in the paper"
    )
    parser.add_argument("--block-size", type=positive, default=16)
    parser.add_argument("--plot", type=output_file, help="where to draw it, as SVG")
    options = parser.parse_args()
    requests = read_azure(options.data, options.requests, options.longest)
    uses = {
        name: simulate(requests, options.slots, options.longest, policy) for name, policy in POLICIES.items()
    }
    uses["paged"] = measure_paged(requests, options.slots, options.block_size, options.longest)
    print(f"{len(requests)} requests of at most {options.longest} tokens, {options.slots} slots")
    print(f"{'':8}{'useful of reserved':>20}{'useful of all':>15}{'paper':>8}{'batch':>9}{'paper':>8}")
    for name, use in uses.items():
        print(
            f"{name:8}{use.useful:20.1%}{use.of_pool:15.1%}{PAPER_USEFUL[name]:8.1%}"
            f"{use.batch:9.2f}{PAPER_BATCH[name]:8.2f}"
        )
    if options.plot is not None:
        lines = {
            "this engine's pool": [use.of_pool for use in uses.values()],
            "the paper": [PAPER_USEFUL[name] for name in uses],
        }
        options.plot.write_text(line_chart(list(uses), lines, x_label="share of memory that holds tokens"))


if __name__ == "__main__":
    run(main)
