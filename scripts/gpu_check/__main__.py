"""Check the GPU's kernels and the engine over them, and time what is right.

python -m scripts.gpu_check [--json FILE] [--seconds 240] [--only NAME] [--small]

Exit status: 0 if all that was looked at is right, 1 if anything is wrong or raised, 2 if nothing can run.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton
from tqdm import tqdm

from scripts.gpu_check.budget import Budget
from scripts.gpu_check.clock import GPUClock
from scripts.gpu_check.items import SHARES, all_items, carry_out
from scripts.gpu_check.judge import Meter
from scripts.gpu_check.peaks import measure_yardsticks
from scripts.gpu_check.report import Header, as_json, as_table
from scripts.gpu_check.row import Row
from scripts.gpu_check.shapes import FULL, SMALL

__all__ = ["finish", "main"]

_RIGHT, _WRONG, _NOTHING = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at everything that is asked for; returns the exit status."""
    options = _parse(arguments)
    if reason := _missing(is_small=options.small):
        print(f"gpu_check: {reason}", file=sys.stderr)
        return _NOTHING
    budget = Budget(options.seconds, SHARES)
    device = torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")
    shapes, only = SMALL if options.small else FULL, options.only or ""
    names = dict.fromkeys(item.name for item in all_items(shapes, device, None))
    if not any(only in name for name in names):
        print(f"gpu_check: nothing is named {only}; there are {'; '.join(names)}", file=sys.stderr)
        return _NOTHING
    header = _header(device, is_small=options.small)
    print(header)
    meter = None if options.small else _meter(device)
    if meter is not None:
        print(f"yardsticks: {meter[1]}")
    chosen = [item for item in all_items(shapes, device, meter) if only in item.name]

    def note(rows: list[Row]) -> None:
        """What is found so far, should the run not come to its end."""
        if options.json is not None:
            options.json.write_text(as_json(header, None if meter is None else meter[1], rows) + "\n")

    return finish(carry_out(tqdm(chosen, desc="checking", unit="case"), budget, note))


def finish(rows: Sequence[Row]) -> int:
    """Print the table; returns the exit status."""
    print(as_table(rows))
    return _WRONG if any(row.is_bad for row in rows) else _RIGHT


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description="Check the GPU's kernels and steps, and time what is right."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--seconds", type=float, default=240.0, help="what begins later is skipped by name")
    parser.add_argument("--only", metavar="NAME", help="what has this in its name")
    parser.add_argument(
        "--small", action="store_true", help="tiny shapes, nothing timed; TRITON_INTERPRET=1 needs no GPU"
    )
    return parser.parse_args(arguments)


def _missing(*, is_small: bool) -> str | None:
    """Why nothing can run here, if so."""
    if triton.knobs.runtime.interpret:
        advice = (
            "TRITON_INTERPRET is set, and times of the interpreter say nothing: unset it, or take --small"
        )
        return None if is_small else advice
    if torch.cuda.is_available():
        return None
    return "torch finds no GPU here; TRITON_INTERPRET=1 and --small go through tiny shapes without one"


def _header(device: torch.device, *, is_small: bool) -> Header:
    is_gpu = device.type == "cuda"
    return Header(
        device=torch.cuda.get_device_name(device) if is_gpu else "Triton's interpreter, on a CPU",
        torch=torch.__version__,
        triton=triton.__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        is_small=is_small,
    )


def _meter(device: torch.device) -> Meter:
    clock = GPUClock(device)
    return clock, measure_yardsticks(clock, device)


if __name__ == "__main__":
    sys.exit(main())
