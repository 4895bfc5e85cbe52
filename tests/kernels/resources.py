"""What every GPU kernel takes of every chip, as a table: `python -m tests.kernels.resources`.

Read off machine code for chips that are not here, at the sizes of the tests that bound it.
"""

from collections.abc import Callable, Iterator
from functools import partial

from tests.gpu.test_attention_compiled import SHAPE
from tests.kernels import test_small_kernels_compiled as small
from tests.kernels.aot import TARGETS, Compiler, DoesNotCompile, Resources
from tests.kernels.compiled_attention import MERGE, TILED, compile_attention


def kernels(compiler: Compiler) -> Iterator[tuple[str, Callable[[str], Resources]]]:
    """Names, and what compiles them for a target."""
    for kernel in (*TILED, MERGE):
        yield kernel, partial(_compile_wide, compiler, kernel)
    for kernel in TILED:
        yield f"{kernel}, 8 bits", partial(_compile_narrow, compiler, kernel)
    for kernel, constants, num_warps, *_ in small.KERNELS:
        yield kernel, partial(_compile_small, compiler, kernel, constants, num_warps)
    for kernel in small.FP8:
        yield kernel, partial(small.compile_fp8, compiler, kernel)


def _compile_wide(compiler: Compiler, kernel: str, target: str) -> Resources:
    return compile_attention(compiler, kernel, target, SHAPE)


def _compile_narrow(compiler: Compiler, kernel: str, target: str) -> Resources:
    return compile_attention(compiler, kernel, target, SHAPE, "fp8e4b8" if target == "gfx942" else "fp8e4nv")


def _compile_small(
    compiler: Compiler, kernel: str, constants: dict[str, int], num_warps: int, target: str
) -> Resources:
    return compiler.compile(
        f"kernels.{kernel}",
        target,
        small.TYPES,
        constants,
        multiples_of_16=small.ALIGNED,
        num_warps=num_warps,
    )


def _describe(compile_for: Callable[[str], Resources], target: str) -> str:
    try:
        found = compile_for(target)
    except DoesNotCompile:
        return "none"
    kib = found.shared_bytes / 1024
    return f"{found.registers}, {found.spilled}, {kib:.3g}, {found.wide_loads}, {found.matrix_instructions}"


def main() -> None:
    """One line a kernel, one column a chip."""
    print("| kernel | " + " | ".join(TARGETS) + " |")
    print("|---|" + "---|" * len(TARGETS))
    with Compiler() as compiler:
        for name, compile_for in kernels(compiler):
            cells = [_describe(compile_for, target) for target in TARGETS]
            print(f"| `{name.split(':')[-1].strip('_')}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
