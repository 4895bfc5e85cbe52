"""Products of bytes: the definition number by number, and the compiled product against it."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Kernels
from kernels.byte_linear import (
    INPUT_TOP,
    MAX_INPUTS,
    TINY,
    TOP,
    ByteMatrix,
    byte_linear_reference,
    quantize_bytes,
    split_inputs,
)
from kernels.cpu.amx import is_usable
from kernels.cpu.byte_linear import ByteProduct

WAYS = [False, True] if is_usable() else [False]  # with tile registers; a machine may have vectors only
DTYPES = [torch.float32, torch.bfloat16]


def random_case(
    num_rows: int, num_outputs: int, num_inputs: int, *, seed: int = 0, has_bias: bool = True
) -> tuple[ByteMatrix, torch.Tensor | None, torch.Tensor]:
    """A matrix, its bias and rows; outputs and rows differ in size by far."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator)

    weight = numbers(num_outputs, num_inputs) * torch.exp2(3 * numbers(num_outputs, 1))
    x = numbers(num_rows, num_inputs) * torch.exp2(4 * numbers(num_rows, 1))
    return quantize_bytes(weight), numbers(num_outputs) if has_bias else None, x


def assert_near(
    found: torch.Tensor,
    matrix: ByteMatrix,
    bias: torch.Tensor | None,
    x: torch.Tensor,
    expected: torch.Tensor,
) -> None:
    """A few roundings of the largest number on the way, and one to the type of the result."""
    sizes = x.double().abs() @ matrix.widened().double().abs().t()
    if bias is not None:
        sizes += bias.double().abs()
    unit = 2**-7 if x.dtype == torch.bfloat16 else 2**-22
    allowed = 2**-21 * sizes + unit * expected.double().abs()
    assert found.dtype == x.dtype
    assert found.shape == expected.shape
    assert ((found.double() - expected.double()).abs() <= allowed).all()


def test_codes_are_the_nearest_and_the_largest_number_has_the_largest_code() -> None:
    weight = torch.randn(9, 50)
    weight[3] = 0.0

    matrix = quantize_bytes(weight)

    assert ((matrix.widened() - weight).abs() <= 0.5001 * matrix.scales[:, None]).all()
    assert matrix.codes.abs().amax(1).tolist() == [TOP] * 3 + [0] + [TOP] * 5
    assert matrix.scales[3] == 0.0


def test_each_output_has_a_scale_of_its_own_however_many_there_are() -> None:
    weight = torch.randn(9000, 3)

    matrix = quantize_bytes(weight)

    alone = quantize_bytes(weight[8191:8193])
    assert torch.equal(matrix.codes[8191:8193], alone.codes)
    assert torch.equal(matrix.scales[8191:8193], alone.scales)


def test_inputs_are_split_into_two_bytes_that_stand_for_the_nearest_step() -> None:
    x = torch.randn(6, 300)

    high, low, steps = split_inputs(x)

    codes = 128 * high + low
    assert (codes.abs().amax(1) == INPUT_TOP).all()
    assert high.abs().max() <= 127
    assert low.min() >= -64
    assert low.max() <= 63
    assert ((codes * steps[:, None] - x).abs() <= 0.501 * steps[:, None]).all()


def test_the_reference_is_the_definition_number_by_number() -> None:
    matrix, bias, x = random_case(4, 5, 33)
    assert bias is not None

    found = byte_linear_reference(matrix, bias)(x)

    high, low, steps = split_inputs(x)
    for row in range(4):
        for output in range(5):
            total = sum(
                int(code) * (128 * int(up) + int(down))
                for code, up, down in zip(matrix.codes[output], high[row], low[row], strict=True)
            )
            value = float(matrix.scales[output]) * float(steps[row]) * total + float(bias[output])
            assert float(found[row, output]) == pytest.approx(value, rel=1e-7)


def test_the_reference_is_near_the_product_of_floats() -> None:
    weight, x = torch.randn(40, 200), torch.randn(7, 200)

    found = byte_linear_reference(quantize_bytes(weight), None)(x)

    expected = x @ weight.t()
    assert 0.001 * expected.norm() < (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_registers", WAYS)
@settings(max_examples=60)
@given(
    num_rows=st.integers(0, 70),
    num_outputs=st.integers(1, 100),
    num_inputs=st.integers(1, 200),
    has_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_compiled_product_agrees_with_the_reference(
    has_registers: bool,
    dtype: torch.dtype,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    has_bias: bool,
    seed: int,
) -> None:
    matrix, bias, x = random_case(num_rows, num_outputs, num_inputs, seed=seed, has_bias=has_bias)
    x = x.to(dtype)

    found = ByteProduct(matrix, bias, has_registers=has_registers)(x)

    assert_near(found, matrix, bias, x, byte_linear_reference(matrix, bias)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_and_registers_agree_bit_for_bit(dtype: torch.dtype) -> None:
    for num_rows, num_outputs, num_inputs in [(1, 32, 64), (16, 70, 130), (37, 33, 576), (130, 100, 31)]:
        matrix, bias, x = random_case(num_rows, num_outputs, num_inputs)

        found = [ByteProduct(matrix, bias, has_registers=way)(x.to(dtype)) for way in WAYS]

        assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("has_registers", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_comes_to_the_same_bits_in_any_company(dtype: torch.dtype, has_registers: bool) -> None:
    matrix, bias, x = random_case(130, 70, 200)
    x = x.to(dtype)
    product = ByteProduct(matrix, bias, has_registers=has_registers)
    together = product(x)

    for num_rows in range(1, 131):
        assert torch.equal(product(x[:num_rows]), together[:num_rows])
        start = 130 - num_rows
        assert torch.equal(product(x[start:]), together[start:])


@pytest.mark.parametrize("has_registers", WAYS)
@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_spoils_its_own_row_only(strange: float, has_registers: bool) -> None:
    for num_rows in (3, 20):
        matrix, bias, x = random_case(num_rows, 40, 100)
        product = ByteProduct(matrix, bias, has_registers=has_registers)
        plain = product(x)
        x[1, 17] = strange

        found = product(x)

        assert found[1].isnan().all()
        assert byte_linear_reference(matrix, bias)(x)[1].isnan().all()
        others = [row for row in range(num_rows) if row != 1]
        assert torch.equal(found[others], plain[others])


@pytest.mark.parametrize(
    "make", [byte_linear_reference, *(partial(ByteProduct, has_registers=w) for w in WAYS)]
)
def test_a_row_of_zeros_comes_to_the_bias(make: partial[ByteProduct]) -> None:
    matrix, bias, x = random_case(20, 40, 100)
    assert bias is not None
    x[::3] = 0.0
    x[3] = TINY / 2

    found = make(matrix, bias)(x)

    assert torch.equal(found[::3], bias.expand(7, -1))
    assert not torch.equal(found[1], bias)


@pytest.mark.parametrize("exponent", [-98, -60, 0, 60, 120])
def test_tiny_and_huge_rows_are_as_precise_as_others(exponent: int) -> None:
    """A row times a power of two is split into the same bytes."""
    generator = torch.Generator().manual_seed(2)
    matrix = quantize_bytes(torch.randn(40, 100, generator=generator))
    x = torch.randn(20, 100, generator=generator)
    factor = 2.0**exponent
    product = ByteProduct(matrix, None)

    found = product(x * factor)

    assert found.isfinite().all()
    torch.testing.assert_close(found.double() / factor, product(x).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("has_registers", WAYS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_row_of_the_largest_codes_is_added_exactly(sign: int, has_registers: bool) -> None:
    matrix = quantize_bytes(torch.full((2, MAX_INPUTS), 1.0) * torch.tensor([[1.0], [-1.0]]))
    x = torch.full((5, MAX_INPUTS), float(sign))

    found = ByteProduct(matrix, None, has_registers=has_registers)(x)

    expected = torch.tensor([sign, -sign]) * float(MAX_INPUTS)
    torch.testing.assert_close(found, expected.expand(5, -1), rtol=1e-6, atol=0)


def test_more_inputs_than_are_added_exactly_are_refused() -> None:
    with pytest.raises(ValueError, match=f"{MAX_INPUTS + 1} inputs"):
        quantize_bytes(torch.zeros(1, MAX_INPUTS + 1))


def test_int8_products_are_these() -> None:
    weight, bias, x = torch.randn(33, 80), torch.randn(33), torch.randn(9, 80)

    found = Kernels.cpu("int8").linear(weight, bias)(x)

    assert torch.equal(found, ByteProduct(quantize_bytes(weight), bias)(x))
