"""A decoder's layers as one compiled call.

Owns the weights in the program's order, and the memory that it computes in. `kernels.cpu.layer_program` is
the program.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

from kernels.byte_linear import quantize_bytes
from kernels.cpu.amx import is_usable
from kernels.cpu.arrays import as_array
from kernels.cpu.attention_pieces import workspace_for
from kernels.cpu.attention_ways import way_for
from kernels.cpu.byte_linear import PackedBytes, pack
from kernels.cpu.byte_tiles import ROWS, SUMS_SIZE, TILE_OUTPUTS
from kernels.cpu.layer_program import KINDS_OF_WORK, PHASES_OF_LAYER, RUN
from kernels.cpu.layer_records import DOWN, MATRIX, PROGRAM, QKV, UP
from kernels.cpu.paged_attention import check_shape
from kernels.cpu.parallel import COUNTERS_OF_PHASE
from kernels.cpu.vectors import LANES
from kernels.grouped import as_tensor
from kernels.stack import LayerWeights, StackShape, StepTensors

__all__ = ["FusedStack"]


class FusedStack:
    """The layers with matrices of 8 bits. Takes the weights one layer at a time.

    `has_registers`: the machine has tile registers for products of bytes, see `amx.is_usable`. They change no
    bit of a result.
    """

    def __init__(
        self,
        layers: Iterable[LayerWeights],
        final_norm: torch.Tensor,
        shape: StackShape,
        *,
        has_registers: bool | None = None,
    ) -> None:
        self._shape = shape
        norms: list[torch.Tensor] = []
        head_norms: list[torch.Tensor] = []
        self._packed: list[list[PackedBytes]] = []
        for layer in layers:
            self._packed.append(_pack_layer(layer))
            norms += [layer.input_norm, layer.mlp_norm]
            if layer.query_norm is not None and layer.key_norm is not None:
                head_norms += [layer.query_norm, layer.key_norm]
        self._norms, self._head_norms = _stacked([*norms, final_norm]), _stacked(head_norms)
        self._matrices = np.array([[_record(each) for each in layer] for layer in self._packed], MATRIX)
        self._program = self._make_program(is_usable() if has_registers is None else has_registers)
        self._workspace: Any = None
        self._memory: dict[str, npt.NDArray[Any]] = {}
        self._max_rows = 0

    @staticmethod
    def fits(hidden_size: int, head_dim: int) -> bool:
        """Whether rows and heads are of whole vectors."""
        return hidden_size % TILE_OUTPUTS == 0 and head_dim % LANES == 0

    @property
    def cycles(self) -> dict[str, int]:
        """What the first thread's time went to, since the last step that needed more memory than those
        before it: cycles by kind of work.
        """
        return dict(zip(KINDS_OF_WORK, self._memory["cycles"].tolist(), strict=True))

    def __call__(
        self,
        residual: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        step: StepTensors,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """As `kernels.stack.Stack`. One call at a time."""
        shape, num_rows = self._shape, len(residual)
        check_shape(shape.head_dim, keys.shape[-1], keys.dtype)
        hidden = torch.empty(residual.shape)
        query = torch.empty(num_rows, shape.num_heads, shape.head_dim, dtype=_query_dtype(keys.dtype))
        workspace = self._take_memory(num_rows, keys.dtype)
        self._memory["counters"][:] = 0
        program = self._program
        program["num_rows"] = num_rows
        for name, tensor in (
            ("residual", residual),
            ("cosines", angles[0]),
            ("sines", angles[1]),
            ("slot_mapping", step.slot_mapping),
        ):
            assert tensor.is_contiguous(), f"{name} is read by its address"
            program[name] = tensor.data_ptr()
        RUN[way_for(keys.dtype, shape.head_dim)](
            program,
            self._matrices,
            (*map(as_array, (keys, values, query, hidden)), self._memory["qkv"], self._memory["attended"]),
            workspace,
            step.block_tables.numpy(),
            step.context_lens.numpy(),
            step.cu_seqlens_q.numpy(),
            step.leaders.numpy(),
        )
        return hidden

    def _make_program(self, has_registers: bool) -> npt.NDArray[np.void]:
        program = np.zeros(1, PROGRAM)
        program["num_layers"] = self._shape.num_layers
        program["num_heads"] = self._shape.num_heads
        program["hidden_size"] = self._norms.shape[1]
        program["eps"] = self._shape.rms_eps
        program["scale"] = self._shape.score_scale
        program["has_registers"] = has_registers
        program["norms"] = self._norms.ctypes.data
        if self._head_norms.size:
            program["head_norms"] = self._head_norms.ctypes.data
        return program

    def _take_memory(self, num_rows: int, dtype: torch.dtype) -> Any:
        """What the last step computed in, if it is large enough for this one."""
        if self._workspace is None or self._max_rows < num_rows:
            self._max_rows = num_rows + -num_rows % ROWS
            num_workers = numba.get_num_threads()
            self._program["num_workers"] = num_workers
            self._memory = self._make_memory(self._max_rows, num_workers)
            for name in set(self._memory) & set(PROGRAM.names or ()):
                self._program[name] = self._memory[name].ctypes.data
            self._workspace = workspace_for(dtype, num_workers, self._shape.head_dim)
        return self._workspace

    def _make_memory(self, num_rows: int, num_workers: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays that the program computes in."""
        shape, matrices = self._shape, self._matrices[0]
        width = int(matrices["num_inputs"].max())
        num_phases = shape.num_layers * PHASES_OF_LAYER + 1
        return {
            "high": _aligned(torch.int8, num_rows * width),
            "low": _aligned(torch.int8, num_rows * width),
            "steps": _aligned(torch.float32, num_rows),
            "excesses": _aligned(torch.int32, 2 * num_rows),
            "qkv": _aligned(torch.float32, num_rows, int(matrices[QKV]["num_outputs"])),
            "attended": _aligned(torch.float32, num_rows, shape.num_heads, shape.head_dim),
            "expanded": _aligned(torch.float32, num_rows, int(matrices[UP]["num_outputs"])),
            "rows": _aligned(torch.float32, num_workers, self._norms.shape[1]),
            "sums": _aligned(torch.int32, num_workers, 2, ROWS * SUMS_SIZE),
            "counters": _aligned(torch.int64, num_phases * COUNTERS_OF_PHASE),
            "cycles": _aligned(torch.int64, len(KINDS_OF_WORK)),
        }


def _query_dtype(dtype: torch.dtype) -> torch.dtype:
    """What queries are in that meet a pool's keys."""
    return torch.float32 if dtype == torch.int8 else dtype


def _aligned(dtype: torch.dtype, *shape: int) -> npt.NDArray[Any]:
    """Zeros that begin with a cache line, as torch's memory does and numpy's does not."""
    zeros: npt.NDArray[Any] = torch.zeros(shape, dtype=dtype).numpy()
    return zeros


def _pack_layer(layer: LayerWeights) -> list[PackedBytes]:
    """A layer's matrices in the order QKV, OUTPUT, GATE, UP, DOWN."""
    gate, up = as_tensor(layer.gate_up).chunk(2)
    biases = (None, None) if layer.gate_up_bias is None else layer.gate_up_bias.chunk(2)
    parts = [
        (as_tensor(layer.qkv), layer.qkv_bias),
        (as_tensor(layer.output), layer.output_bias),
        (gate, biases[0]),
        (up, biases[1]),
        (as_tensor(layer.down), layer.down_bias),
    ]
    assert len(parts) == DOWN + 1, "every matrix has its place"
    return [pack(quantize_bytes(matrix), bias) for matrix, bias in parts]


def _record(packed: PackedBytes) -> tuple[int, ...]:
    addresses = (array.ctypes.data for array in (packed.codes, packed.scales, packed.bias))
    return (*addresses, packed.num_inputs, len(packed.scales))


def _stacked(rows: Sequence[torch.Tensor]) -> npt.NDArray[Any]:
    """Rows below each other, as float32."""
    return torch.stack([row.float() for row in rows]).numpy() if rows else np.empty(0, np.float32)
