"""Arrays that travel together arrive as they were."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.transfer import pack, send, unpack

ARRAYS: list[npt.NDArray[Any]] = [
    np.arange(3, dtype=np.int32),
    np.zeros((2, 0), np.int32),
    np.arange(5, dtype=np.int64) << 40,
    np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
    np.array([0.5, -0.25]),
]


def test_what_was_packed_is_unpacked_with_shapes_and_types() -> None:
    found = unpack(torch.from_numpy(pack(ARRAYS)), ARRAYS)

    for tensor, array in zip(found, ARRAYS, strict=True):
        assert torch.equal(tensor, torch.from_numpy(array.copy()))
        assert tensor.dtype == torch.from_numpy(array.copy()).dtype


def test_every_array_begins_where_kernels_may_load_16_bytes() -> None:
    packed = torch.from_numpy(pack(ARRAYS))

    starts = [tensor.data_ptr() - packed.data_ptr() for tensor in unpack(packed, ARRAYS)]

    assert all(start % 16 == 0 for start in starts)


def test_on_the_cpu_nothing_is_copied() -> None:
    (tensor,) = send([ARRAYS[0]], torch.device("cpu"))

    assert tensor.data_ptr() == ARRAYS[0].ctypes.data
