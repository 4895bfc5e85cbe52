"""Grouped matrices: their numbers, and their products compiled and plain, whatever the company."""

import itertools
import math

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch.nn.functional import pad

from kernels import Kernels
from kernels.cpu import lowering
from kernels.cpu.grouped_linear import GroupedProduct
from kernels.cpu.integer_tiles import dot_bytes
from kernels.grouped import (
    GROUP,
    GroupedMatrix,
    concatenate,
    grouped_linear_reference,
    join_rows,
    lookup,
    quantize_inputs,
    quantize_matrix,
)

FORMS = list(itertools.product((4, 8), (False, True)))
Kernels.cpu()  # sets the threads of compiled kernels


def random_matrix(bits: int, has_minima: bool, num_outputs: int, num_groups: int) -> GroupedMatrix:
    codes = torch.randint(256, (num_outputs, num_groups, GROUP * bits // 8), dtype=torch.uint8)
    scales = (torch.rand(num_outputs, num_groups) * 2 ** (3 - bits)).half()
    minima = -torch.rand(num_outputs, num_groups).half() if has_minima else None
    return GroupedMatrix(codes, scales, minima, 0 if has_minima else 1 << (bits - 1))


def plain_product(matrix: GroupedMatrix, x: torch.Tensor) -> torch.Tensor:
    """The definition, number by number in float64: [num_rows, num_outputs]."""
    out = torch.zeros(len(x), matrix.shape[0], dtype=torch.float64)
    codes = matrix.plain_codes().long()
    for row, group in itertools.product(range(len(x)), range(codes.shape[1])):
        values = x[row, group * GROUP : (group + 1) * GROUP].float()
        peak = float(values.abs().max())
        step = peak / 127
        rounded = torch.tensor([round(float(v) * (127 / peak)) if peak else 0 for v in values])
        for output in range(matrix.shape[0]):
            total = int((codes[output, group] - matrix.offset) @ rounded)
            low = 0.0 if matrix.minima is None else float(matrix.minima[output, group])
            part = float(matrix.scales[output, group]) * total + low * int(rounded.sum())
            out[row, output] += step * part
    return out


@pytest.mark.parametrize(("bits", "has_minima"), FORMS)
def test_the_reference_is_the_definition(bits: int, has_minima: bool) -> None:
    matrix, x = random_matrix(bits, has_minima, 5, 3), torch.randn(4, 3 * GROUP)

    found = grouped_linear_reference(matrix, None)(x)

    torch.testing.assert_close(found.double(), plain_product(matrix, x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("bits", "has_minima"), FORMS)
@pytest.mark.parametrize(("num_outputs", "num_groups"), [(1, 1), (33, 3), (64, 18)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_product_agrees_with_the_reference(
    bits: int, has_minima: bool, num_outputs: int, num_groups: int, dtype: torch.dtype
) -> None:
    matrix = random_matrix(bits, has_minima, num_outputs, num_groups)
    bias = torch.randn(num_outputs)
    for num_rows in (0, 1, 2, 3, 7, 8, 15, 64, 65, 130):
        x = torch.randn(num_rows, num_groups * GROUP).to(dtype)

        found = GroupedProduct(matrix, bias)(x)

        expected = grouped_linear_reference(matrix, bias)(x)
        tight = {"atol": 1e-4, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-3, "rtol": 1e-2}
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, **tight)


@pytest.mark.parametrize(("bits", "has_minima"), FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_in_any_company(bits: int, has_minima: bool, dtype: torch.dtype) -> None:
    product = GroupedProduct(random_matrix(bits, has_minima, 70, 3), None)
    x = torch.randn(75, 3 * GROUP).to(dtype)
    together = product(x)

    for start, end in [(0, 1), (0, 2), (5, 12), (3, 11), (64, 75), (1, 70)]:
        assert torch.equal(product(x[start:end]), together[start:end])


@pytest.mark.parametrize(("bits", "has_minima"), FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_widened_product_multiplies_the_numbers_themselves(
    bits: int, has_minima: bool, dtype: torch.dtype
) -> None:
    matrix, bias = random_matrix(bits, has_minima, 41, 2), torch.randn(41).to(dtype)
    x = torch.randn(9, 50).to(dtype)

    found = GroupedProduct(matrix, bias).multiply_widened(x)

    weight = matrix.widened().to(dtype)[:, :50]
    expected = (x.double() @ weight.double().t() + bias.double()).to(dtype)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5 if dtype == torch.float32 else 1e-2)


def test_rows_that_end_inside_a_group_are_padded_with_zeros() -> None:
    weight, x = torch.randn(20, 70), torch.randn(3, 70)

    found = GroupedProduct(quantize_matrix(weight), None)(x)

    whole = GroupedProduct(quantize_matrix(pad(weight, (0, 26))), None)(pad(x, (0, 26)))
    assert torch.equal(found, whole)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_spoils_its_own_row_alone(bad: float) -> None:
    matrix, x = random_matrix(8, False, 40, 2), torch.randn(11, 2 * GROUP)
    product = GroupedProduct(matrix, None)
    good = product(x)
    x[4, 37] = bad

    found = product(x)

    others = torch.arange(11) != 4
    assert torch.equal(found[others], good[others])
    assert found[4].isnan().all()
    assert grouped_linear_reference(matrix, None)(x)[4].isnan().all()


@pytest.mark.parametrize("value", [0.0, 1e-38, 3e38])
def test_rows_of_extreme_numbers_stay_finite_and_right(value: float) -> None:
    matrix, x = random_matrix(8, False, 32, 1), torch.full((2, GROUP), value)
    x[1] = 0

    found = GroupedProduct(matrix, None)(x / 1e3 if value > 1 else x)

    expected = grouped_linear_reference(matrix, None)(x / 1e3 if value > 1 else x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-20)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=GROUP, max_size=GROUP))
def test_quantized_numbers_are_half_a_step_away_at_most(values: list[float]) -> None:
    x = torch.tensor([values])

    codes, steps = quantize_inputs(x)

    assert codes.abs().max() <= 127
    assert ((codes * steps[:, :, None]).flatten(1) - x).abs().max() <= 0.501 * float(steps.max()) + 1e-30
    weight = quantize_matrix(x)
    # the scale is a float16: half a unit of its last place off, and of its smallest number for tiny ones
    slack = float(weight.scales.max()) * 0.51 + float(x.abs().max()) * 2**-10 + 127 * 2**-25
    assert (weight.widened() - x).abs().max() <= slack


def test_matrices_of_one_form_lie_below_each_other_unchanged() -> None:
    parts = [random_matrix(4, True, rows, 2) for rows in (3, 5)]

    joined = concatenate(parts)

    assert joined.bits == 4
    assert torch.equal(joined.widened(), torch.cat([part.widened() for part in parts]))


def test_matrices_of_unlike_forms_lie_below_each_other_unchanged() -> None:
    parts = [random_matrix(bits, has_minima, 3, 2) for bits, has_minima in FORMS]

    joined = concatenate(parts)

    assert torch.equal(joined.widened(), torch.cat([part.widened() for part in parts]))


def test_a_tensor_below_a_grouped_matrix_becomes_grouped() -> None:
    grouped, plain = random_matrix(8, False, 3, 2), torch.randn(4, 2 * GROUP)

    joined = join_rows([grouped, plain])

    assert isinstance(joined, GroupedMatrix)
    assert torch.equal(joined.widened()[3:], quantize_matrix(plain).widened())
    assert torch.equal(join_rows([plain, plain])[4:], plain)  # type: ignore[index]


def test_rows_are_looked_up_as_floats() -> None:
    matrix, ids = random_matrix(8, False, 9, 2), torch.tensor([3, 3, 0], dtype=torch.int32)

    assert torch.equal(lookup(matrix)(ids), matrix.widened()[ids.long()])
    assert torch.equal(
        lookup(matrix.widened().bfloat16())(ids), matrix.widened().bfloat16()[ids.long()].float()
    )


@intrinsic
def add_plain_dots(typing, sums, codes, inputs):  # type: ignore[no-untyped-def] # numba's own form
    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        zero = ir.Constant(ir.IntType(64), 0)
        places = [
            builder.bitcast(lowering.address(context, builder, data, kind, zero), lowering.INTS.as_pointer())
            for data, kind in zip(arguments, signature.args, strict=True)
        ]
        vectors = [builder.load(place, align=1) for place in places]
        builder.store(dot_bytes(builder, *vectors, has_vnni=False), places[0], align=1)
        return context.get_dummy_value()

    return types.none(sums, codes, inputs), codegen


def test_processors_without_the_instruction_get_the_same_integers() -> None:
    codes, inputs = torch.randint(256, (16, 4)), torch.randint(-127, 128, (16, 4))
    sums = torch.randint(-1000, 1000, (16,), dtype=torch.int32)
    expected = sums + (codes * inputs).sum(1)

    numba.njit(lambda *arrays: add_plain_dots(*arrays))(
        sums.numpy(), codes.to(torch.uint8).numpy(), inputs.to(torch.int8).numpy()
    )

    assert torch.equal(sums, expected)
