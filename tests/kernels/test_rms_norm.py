"""RMS norm: the formula, and the compiled kernel against it."""

import pytest
import torch

from kernels import Kernels

SIZES = [1, 15, 64, 100]
DTYPES = [torch.float32, torch.bfloat16]


def test_the_reference_is_the_formula() -> None:
    found = Kernels.reference().rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)

    torch.testing.assert_close(found, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_norm_agrees_with_the_reference(size: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 2, size).to(dtype), torch.randn(size).to(dtype)

    found = Kernels.cpu().rms_norm(x, weight, 1e-5)

    torch.testing.assert_close(found, Kernels.reference().rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_sum_agrees_with_the_reference(size: int, dtype: torch.dtype) -> None:
    x, weight, residual = torch.randn(3, size).to(dtype), torch.randn(size).to(dtype), torch.randn(3, size)
    expected_sum = residual.clone()
    expected = Kernels.reference().add_rms_norm(x, expected_sum, weight, 1e-5)

    found = Kernels.cpu().add_rms_norm(x, residual, weight, 1e-5)

    torch.testing.assert_close(found, expected)
    assert torch.equal(residual, expected_sum)
