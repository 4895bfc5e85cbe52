"""Which types of keys and values a GPU has: one rule for those who store and those who read."""

import pytest
import torch

from kernels.pool_types import Capability, check_pool_type, find_capability, fp8_dtype

E4M3FN, E4M3FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
OF_CHIPS = {
    "sm_80": (Capability(8, 0), None),
    "sm_86": (Capability(8, 6), None),
    "sm_89": (Capability(8, 9), E4M3FN),
    "sm_90": (Capability(9, 0), E4M3FN),
    "sm_94": (Capability(9, 4), E4M3FN),
    "sm_100": (Capability(10, 0), E4M3FN),
    "gfx90": (Capability(9, 0, is_amd=True), None),
    "gfx94": (Capability(9, 4, is_amd=True), E4M3FNUZ),
    "gfx95": (Capability(9, 5, is_amd=True), E4M3FN),
    "gfx110": (Capability(11, 0, is_amd=True), None),
}


@pytest.mark.parametrize("chip", OF_CHIPS)
def test_a_chip_stores_and_reads_its_own_floats_of_8_bits_and_refuses_others_by_name(chip: str) -> None:
    capability, own = OF_CHIPS[chip]

    if own is None:
        with pytest.raises(ValueError, match=rf"^{chip} has no floats of 8 bits: .* the model's type$"):
            fp8_dtype(capability)
    else:
        assert fp8_dtype(capability) is own
        check_pool_type(own, capability)
    for other in {E4M3FN, E4M3FNUZ} - {own}:
        with pytest.raises(ValueError, match=rf"^{chip} cannot read .* {other}: keep them in {own or 'the'}"):
            check_pool_type(other, capability)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_chip_reads_16_bits_and_more(dtype: torch.dtype) -> None:
    for capability, _ in OF_CHIPS.values():
        check_pool_type(dtype, capability)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2, torch.float64])
def test_types_of_no_pool_are_refused_by_name_on_any_chip(dtype: torch.dtype) -> None:
    for capability in (None, Capability(9, 0), Capability(9, 4, is_amd=True)):
        with pytest.raises(ValueError, match=f"{dtype} are not for a GPU"):
            check_pool_type(dtype, capability)


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3FN, E4M3FNUZ])
def test_without_a_gpu_every_pool_can_be_read(dtype: torch.dtype) -> None:
    assert find_capability(torch.device("cpu")) is None
    check_pool_type(dtype, None)
