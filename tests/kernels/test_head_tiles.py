"""How kernels are launched that rotate heads and store them."""

from typing import Any

import pytest
import torch

from kernels.head_tiles import launch_heads
from tests.gpu.test_small_kernels_compiled import ROPE


class Noted:
    """Stands for a kernel: remembers its grid, its arguments and its constants."""

    def __getitem__(self, grid: tuple[int, ...]) -> "Noted":
        self.grid = grid
        return self

    def __call__(self, *arguments: Any, **constants: int) -> None:
        self.arguments, self.constants = arguments, constants


def _launch(num_heads: int, num_kv_heads: int, head_dim: int) -> Noted:
    kernel, width = Noted(), (num_heads + 2 * num_kv_heads) * head_dim
    keys = torch.empty(2, num_kv_heads, head_dim, 16)
    angles = torch.empty(3, head_dim // 2), torch.empty(3, head_dim // 2)
    pool = keys, keys.transpose(2, 3).contiguous(), 0.5, 0.25
    launch_heads(kernel, torch.empty(3, width), (), angles, pool, torch.zeros(3, dtype=torch.int32), LIMIT=9)
    return kernel


def test_a_model_of_8_billion_weights_gets_the_tiles_that_are_compiled_ahead() -> None:
    kernel = _launch(32, 8, 128)

    assert kernel.constants == {**ROPE, "LIMIT": 9, "num_warps": 1}
    assert kernel.grid == (3, 5)
    assert kernel.arguments[-6:] == (32, 8, 64, 16, 0.5, 0.25)


@pytest.mark.parametrize(
    ("heads", "tile", "num_tiles"),
    [
        ((6, 2, 32), (8, 16), 1),
        ((9, 3, 96), (8, 64), 2),
        ((1, 1, 16), (2, 8), 1),
        ((2, 2, 2048), (1, 1024), 4),
    ],
)
def test_tiles_hold_no_more_than_one_warp_loads_at_once_and_one_head_at_least(
    heads: tuple[int, int, int], tile: tuple[int, int], num_tiles: int
) -> None:
    kernel = _launch(*heads)

    assert (kernel.constants["HEADS"], kernel.constants["PAIRS"]) == tile
    assert kernel.grid == (3, num_tiles)


@pytest.mark.parametrize("place", range(7))
def test_tensors_with_gaps_are_refused(place: int) -> None:
    tensors = [torch.zeros(3, 48), *torch.zeros(2, 16), *torch.zeros(2, 3, 8), *torch.zeros(2, 2, 1, 16, 16)]
    tensors[place] = torch.stack((tensors[place], tensors[place]), dim=-1)[..., 0]
    qkv, query_norm, key_norm, cosines, sines, keys, values = tensors
    norms, slots = (query_norm, key_norm, 1e-5), torch.zeros(3, dtype=torch.int32)

    with pytest.raises(AssertionError, match="from the first"):
        launch_heads(Noted(), qkv, norms, (cosines, sines), (keys, values), slots)
