"""Checks of the Triton kernels against their references, run in Triton's interpreter by test_triton.

The interpreter is chosen when a kernel's module is imported, so the checks run in a process of their own.
"""

import torch

from kernels import Kernels
from tests.kernels.pools import Shape, attention_case

TRITON, REFERENCE = Kernels.triton(), Kernels.reference()
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
SHAPES = [Shape(6, 2, 32, 16), Shape(3, 3, 24, 1), Shape(5, 1, 16, 16)]


def check_paged_attention(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        case = attention_case([(1, 1), (16, 3), (17, 17), (37, 1)], shape, dtype).arguments()
        torch.testing.assert_close(
            TRITON.paged_attention(*case), REFERENCE.paged_attention(*case), atol=TOLERANCES[dtype], rtol=1e-2
        )


def check_shared_partitions(dtype: torch.dtype) -> None:
    spans = [(300, 1), (531, 2), (540, 1), (540, 1), (257, 1), (520, 9)]
    for shape, size in ((Shape(6, 2, 32, 16), 16), (Shape(5, 1, 24, 8), 8)):
        ahead = [
            (0, 0),
            (0, 256 // size),
            (1, 512 // size),
            (2, 512 // size),
            (1, 240 // size),
            (0, 256 // size),
        ]
        case = attention_case(spans, shape, dtype, ahead)
        assert case.leaders.tolist() == [[0, 0], [0, 1], [0, 1], [0, 1], [4, 4], [0, 5]]
        torch.testing.assert_close(
            TRITON.paged_attention(*case.arguments()),
            REFERENCE.paged_attention(*case.arguments()),
            atol=TOLERANCES[dtype],
            rtol=1e-2,
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    for check in (check_paged_attention, check_shared_partitions):
        for precision in TOLERANCES:
            check(precision)
            print(check.__name__, precision)
