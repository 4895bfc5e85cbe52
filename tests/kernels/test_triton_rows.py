"""Triton's norms and activation against their references: odd sizes, wide rows and many of them."""

import pytest
import torch

from kernels import Kernels

TRITON, REFERENCE = Kernels.triton(), Kernels.reference()
DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(3, 1), (3, 64), (500, 100), (3, 2000), (2, 16384), (2, 20_001)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_norms_agree_with_the_formula(num_rows: int, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(num_rows, size, generator=generator).to(dtype)
    weight = torch.randn(size, generator=generator).to(dtype)
    residual = torch.randn(num_rows, size, generator=generator)
    expected_sum = residual.clone()
    expected = REFERENCE.add_rms_norm(x, expected_sum, weight, 1e-5)

    torch.testing.assert_close(TRITON.add_rms_norm(x, residual, weight, 1e-5), expected)
    assert torch.equal(residual, expected_sum)
    torch.testing.assert_close(TRITON.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_the_activation_agrees_with_the_formula(num_rows: int, size: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(num_rows, 2 * size, generator=torch.Generator().manual_seed(4)).to(dtype)

    torch.testing.assert_close(TRITON.silu_and_mul(gate_up), REFERENCE.silu_and_mul(gate_up))
