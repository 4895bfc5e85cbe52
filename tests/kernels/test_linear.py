"""Products with a fixed matrix."""

import pytest
import torch

from kernels import Kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_packed_product_agrees_with_the_reference(
    num_rows: int, dtype: torch.dtype, has_bias: bool
) -> None:
    weight, x = torch.randn(30, 70).to(dtype), torch.randn(num_rows, 70).to(dtype)
    bias = torch.randn(30).to(dtype) if has_bias else None

    found = Kernels.cpu().linear(weight, bias)(x)

    expected = Kernels.reference().linear(weight, bias)(x)
    torch.testing.assert_close(found, expected, atol=0.1 if dtype == torch.bfloat16 else 1e-4, rtol=1e-2)
