"""What is left of a GPU for keys and values."""

import pytest

from engine.device_memory import MemoryUse, bytes_left
from engine.loading import load_runner
from engine.messages import EngineConfig

GIB = 1 << 30


def test_what_others_and_the_largest_step_leave_of_the_share() -> None:
    use = MemoryUse(total=80 * GIB, by_others=2 * GIB, at_peak=20 * GIB)

    assert bytes_left(use, 0.9) == 72 * GIB - 22 * GIB


def test_nothing_left_is_refused_with_the_numbers() -> None:
    use = MemoryUse(total=80 * GIB, by_others=30 * GIB, at_peak=20 * GIB)

    with pytest.raises(ValueError, match=r"0\.5.*40\.00 GiB of the GPU's 80\.00 GiB.*20\.00 GiB.*30\.00 GiB"):
        bytes_left(use, 0.5)


def test_a_cpu_has_no_memory_utilization() -> None:
    with pytest.raises(ValueError, match=r"memory_utilization is 0\.5.*GPU.*kv_bytes"):
        load_runner(EngineConfig(model="any", memory_utilization=0.5))
