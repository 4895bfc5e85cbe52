"""The gated activation: the compiled kernel against the formula."""

import pytest
import torch

from kernels import Kernels


@pytest.mark.parametrize("size", [1, 16, 37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_kernel_agrees_with_the_reference(size: int, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(3, 2 * size, generator=torch.Generator().manual_seed(1)) * 20).to(dtype)

    found = Kernels.cpu().silu_and_mul(gate_up)

    torch.testing.assert_close(found, Kernels.reference().silu_and_mul(gate_up))


def test_great_numbers_do_not_overflow() -> None:
    gate = torch.tensor([[-1e30, -200.0, -87.0, 0.0, 200.0, 1e30] * 4])

    found = Kernels.cpu().silu_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))

    torch.testing.assert_close(found, torch.nn.functional.silu(gate), atol=1e-8, rtol=1e-6)
