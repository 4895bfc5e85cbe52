"""Checks of the Triton kernels against their references, run in Triton's interpreter by test_triton.

The interpreter is chosen when a kernel's module is imported, so the checks run in a process of their own.
"""

import torch

from kernels import Kernels
from tests.kernels.pools import Shape

TRITON, REFERENCE = Kernels.triton(), Kernels.reference()
PRECISIONS = (torch.float32, torch.bfloat16)
SHAPES = [Shape(6, 2, 32, 16), Shape(3, 3, 24, 1), Shape(5, 1, 16, 16)]


def check_rope_store_kv(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        qkv = torch.randn(4, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim).to(dtype)
        angles = torch.rand(4, shape.head_dim // 2) * 100
        slots = torch.tensor([shape.block_size * 3 - 1, 0, -1, shape.block_size], dtype=torch.int32)
        results = []
        for kernels in (TRITON, REFERENCE):
            size = (3, shape.num_kv_heads, shape.head_dim, shape.block_size)
            keys = torch.full(size, torch.nan, dtype=dtype)
            values = keys.transpose(2, 3).contiguous()
            query = kernels.rope_store_kv(qkv, angles.cos(), angles.sin(), keys, values, slots)
            results.append((query, keys, values))
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True)


def check_rms_norm(dtype: torch.dtype) -> None:
    for size in (1, 64, 100):
        x, weight = torch.randn(3, size).to(dtype), torch.randn(size).to(dtype)
        residual = torch.randn(3, size)
        expected_sum = residual.clone()
        expected = REFERENCE.add_rms_norm(x, expected_sum, weight, 1e-5)
        torch.testing.assert_close(TRITON.add_rms_norm(x, residual, weight, 1e-5), expected)
        torch.testing.assert_close(residual, expected_sum)
        torch.testing.assert_close(TRITON.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


def check_silu_and_mul(dtype: torch.dtype) -> None:
    for size in (1, 64, 2000):
        gate_up = torch.randn(3, 2 * size).to(dtype)
        torch.testing.assert_close(TRITON.silu_and_mul(gate_up), REFERENCE.silu_and_mul(gate_up))


if __name__ == "__main__":
    torch.manual_seed(0)
    for check in (
        check_rope_store_kv,
        check_rms_norm,
        check_silu_and_mul,
    ):
        for precision in PRECISIONS:
            check(precision)
            print(check.__name__, precision)
