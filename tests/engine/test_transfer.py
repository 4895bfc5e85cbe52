"""Arrays that travel together arrive as they were, there and back."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.transfer import fetch, pack, send, unpack
from tests.engine.other_device import DEVICE, put, read, watched

ARRAYS: list[npt.NDArray[Any]] = [
    np.arange(3, dtype=np.int32),
    np.zeros((2, 0), np.int32),
    np.arange(5, dtype=np.int64) << 40,
    np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
    np.array([0.5, -0.25]),
]
TENSORS = [torch.from_numpy(array) for array in ARRAYS]


def test_what_was_packed_is_unpacked_with_shapes_and_types() -> None:
    found = unpack(torch.from_numpy(pack(ARRAYS)), TENSORS)

    for tensor, expected in zip(found, TENSORS, strict=True):
        assert torch.equal(tensor, expected)
        assert tensor.dtype == expected.dtype


def test_every_array_begins_where_kernels_may_load_16_bytes() -> None:
    packed = torch.from_numpy(pack(ARRAYS))

    starts = [tensor.data_ptr() - packed.data_ptr() for tensor in unpack(packed, TENSORS)]

    assert all(start % 16 == 0 for start in starts)


def test_arrays_of_nothing_are_packed_and_unpacked() -> None:
    empty = [np.zeros((0, 3), np.float32), np.zeros(0, np.int64)]

    found = unpack(torch.from_numpy(pack(empty)), [torch.from_numpy(array) for array in empty])

    assert [tuple(tensor.shape) for tensor in found] == [(0, 3), (0,)]


def test_on_the_cpu_nothing_is_copied() -> None:
    (tensor,) = send([ARRAYS[0]], torch.device("cpu"))
    (array,) = fetch([tensor])

    assert tensor.data_ptr() == array.ctypes.data == ARRAYS[0].ctypes.data


def test_nobody_waits_for_what_is_sent() -> None:
    with watched() as watch:
        there = send(ARRAYS, DEVICE)

    assert watch.waits == []
    assert all(torch.equal(read(tensor), expected) for tensor, expected in zip(there, TENSORS, strict=True))


def test_all_that_is_fetched_is_waited_for_once() -> None:
    column = torch.full((1, 6), 3.5)[:, 0]  # one number, six from the next one
    with watched() as watch:
        found = fetch([put(tensor) for tensor in (*TENSORS, column, column.bfloat16().view(torch.int16))])

    assert len(watch.waits) == 1
    for array, expected in zip(found, (*TENSORS, column), strict=False):
        assert np.array_equal(array, expected.numpy())
        assert array.dtype == expected.numpy().dtype


def test_a_device_is_waited_for_though_nothing_is_fetched() -> None:
    with watched() as watch:
        (array,) = fetch([put(torch.empty(0, dtype=torch.int64))])

    assert len(watch.waits) == 1
    assert array.shape == (0,)
