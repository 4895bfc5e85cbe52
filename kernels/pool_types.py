"""Which types of keys and values a GPU has.

16 bits and float32 are everywhere. Of floats of 8 bits (e4m3) a chip has one form or none: NVIDIA's have
e4m3fn from Ada on; of AMD's, gfx942 has e4m3fnuz and gfx950 e4m3fn.
"""

from typing import NamedTuple

import torch

__all__ = ["Capability", "check_pool_type", "find_capability", "fp8_dtype"]

_FIRST_WITH_FP8 = (8, 9)
_AMD_TYPES = {(9, 4): torch.float8_e4m3fnuz, (9, 5): torch.float8_e4m3fn}
_FP8_TYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
_POOL_TYPES = (torch.bfloat16, torch.float16, torch.float32, *_FP8_TYPES)


class Capability(NamedTuple):
    """What torch.cuda.get_device_capability says, and whose chip it is."""

    major: int
    minor: int
    is_amd: bool = False

    @property
    def chip(self) -> str:
        """As compilers call it."""
        return f"{'gfx' if self.is_amd else 'sm_'}{self.major}{self.minor}"


def find_capability(device: torch.device) -> Capability | None:
    """None where there is no GPU."""
    if device.type != "cuda":
        return None
    return Capability(*torch.cuda.get_device_capability(device), is_amd=torch.version.hip is not None)


def fp8_dtype(capability: Capability) -> torch.dtype:
    """A chip's floats of 8 bits. Raises ValueError if it has none."""
    own = _find_fp8(capability)
    if own is None:
        raise ValueError(
            f"{capability.chip} has no floats of 8 bits: keep keys and values in the model's type"
        )
    return own


def check_pool_type(dtype: torch.dtype, capability: Capability | None) -> None:
    """Raise ValueError if a chip cannot read a pool of this type. None is Triton's interpreter, which can."""
    if dtype not in _POOL_TYPES:
        raise ValueError(f"keys and values of {dtype} are not for a GPU")
    if dtype in _FP8_TYPES and capability is not None and dtype is not _find_fp8(capability):
        advice = _find_fp8(capability) or "the model's type"
        raise ValueError(f"{capability.chip} cannot read keys and values of {dtype}: keep them in {advice}")


def _find_fp8(capability: Capability) -> torch.dtype | None:
    version = (capability.major, capability.minor)
    if capability.is_amd:
        return _AMD_TYPES.get(version)
    return torch.float8_e4m3fn if version >= _FIRST_WITH_FP8 else None
