"""Products with a fixed matrix."""

from functools import partial

import pytest
import torch

from kernels import Kernels, Products
from kernels.cpu.crossover import Crossover
from kernels.cpu.fixed_rows import NUM_ROWS
from kernels.grouped import GroupedMatrix, quantize_matrix
from kernels.linear import Product


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("products", ["int8", "packed"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_products_of_few_bits_are_near_those_in_full(
    products: Products, deterministic: bool, dtype: torch.dtype
) -> None:
    weight, bias = torch.randn(100, 192).to(dtype), torch.randn(100).to(dtype)
    product = Kernels.cpu(products, deterministic=deterministic).linear(weight, bias)
    for num_rows in (0, 1, 40, 300):
        x = torch.randn(num_rows, 192).to(dtype)

        found = product(x)

        expected = x.float() @ weight.float().t() + bias.float()
        assert found.dtype == dtype
        assert found.shape == expected.shape
        if num_rows:
            assert (found.float() - expected).norm() < 0.012 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("products", ["full", "int8", "packed"])
def test_a_row_of_a_deterministic_product_is_the_same_in_any_company(
    products: Products, dtype: torch.dtype
) -> None:
    weight, bias = torch.randn(130, 320).to(dtype), torch.randn(130).to(dtype)
    product = Kernels.cpu(products, deterministic=True).linear(weight, bias)
    x = torch.randn(3 * NUM_ROWS + 5, 320).to(dtype)
    together = product(x)

    for start, end in [(0, 0), (0, 1), (3, 5), (1, 34), (NUM_ROWS, 2 * NUM_ROWS), (7, 3 * NUM_ROWS + 5)]:
        assert torch.equal(product(x[start:end]), together[start:end])


def test_a_deterministic_product_agrees_with_the_reference() -> None:
    weight, x = torch.randn(30, 70), torch.randn(70, 70)

    found = Kernels.cpu(deterministic=True).linear(weight, None)(x)

    torch.testing.assert_close(found, x @ weight.t(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [Kernels.reference, Kernels.cpu, partial(Kernels.cpu, "packed")])
def test_a_grouped_matrix_is_multiplied_as_what_it_is(make: partial[Kernels]) -> None:
    matrix, x = quantize_matrix(torch.randn(33, 64)), torch.randn(5, 64)

    found = make().linear(matrix, None)(x)

    expected = x @ matrix.widened().t()
    assert isinstance(matrix, GroupedMatrix)
    assert (found - expected).norm() < 0.02 * expected.norm()


class Clock:
    """Seconds that pass only while a product is computed."""

    def __init__(self) -> None:
        self.now = 0.0

    def product(self, name: float, seconds: float, seconds_per_row: float) -> Product:
        """A product whose every number is its name."""

        def multiply(x: torch.Tensor) -> torch.Tensor:
            self.now += seconds + seconds_per_row * len(x)
            return torch.full_like(x, name)

        return multiply


def _join(first: tuple[float, float], second: tuple[float, float]) -> Product:
    """Products named 1 and 2 that take so long for every call and for every row."""
    clock = Clock()
    few, many = clock.product(1.0, *first), clock.product(2.0, *second)
    return Crossover(lambda: clock.now).join("form", few, lambda: many, torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("first", "second", "limit"),
    [
        ((0.0, 1.0), (20.0, 0.0), 32),
        ((0.0, 1.0), (0.0, 1.0), None),
        ((1.0, 0.0), (0.0, 1.0), None),
        ((0.0, 1.0), (250.0, 0.0), None),
        ((0.0, 1.0), (200.0, 0.0), 256),
        ((2.0, 1.0), (1.0, 0.1), 1),
    ],
)
def test_the_product_that_is_faster_for_so_many_rows_is_taken(
    first: tuple[float, float], second: tuple[float, float], limit: int | None
) -> None:
    product = _join(first, second)

    for num_rows in (1, 8, 31, 32, 33, 255, 256, 999):
        expected = 2.0 if limit is not None and num_rows >= limit else 1.0
        assert product(torch.zeros(num_rows, 1)).unique().tolist() == [expected]


def test_products_of_one_form_are_measured_once() -> None:
    clock, crossover = Clock(), Crossover(lambda: 0.0)
    few, many = clock.product(1.0, 0.0, 1.0), clock.product(2.0, 0.0, 1.0)

    for _ in range(3):
        crossover.join("form", few, lambda: many, torch.zeros(1, 1))
    measured = clock.now

    crossover.join("another", few, lambda: many, torch.zeros(1, 1))
    assert clock.now == 2 * measured > 0


@pytest.mark.parametrize("products", ["int8", "packed"])
def test_a_gpu_refuses_products_of_few_bits(products: Products) -> None:
    with pytest.raises(ValueError, match=f'products is "{products}"'):
        Kernels.for_device("cuda", products)


def test_a_gpu_refuses_to_be_deterministic() -> None:
    with pytest.raises(ValueError, match="deterministic is true"):
        Kernels.for_device("cuda", deterministic=True)
