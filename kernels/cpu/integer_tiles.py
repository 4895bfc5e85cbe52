"""Tiles of sums of integers: what one group of a grouped matrix adds to a few rows of outputs.

Owns the dot product of bytes, and the order of a packed matrix in which one vector holds 4 inputs of LANES
outputs. Where the processor has an instruction for such a vector (`vpdpbusd` of AVX-512 VNNI) it is used;
elsewhere the same integers come out of plain operations.

A tile has COLUMNS vectors a row: COLUMNS x LANES outputs. `kernels.cpu.grouped_linear` gives the arrays'
shapes.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.lowering import LANES
from kernels.grouped import GROUP

__all__ = ["COLUMNS", "add_group", "dot_bytes", "store_rows", "widen_group"]

COLUMNS = 2
STEP = 4  # inputs that one vector of bytes holds of each output
HAS_VNNI = bool(llvmlite.binding.get_host_cpu_features().get("avx512vnni", False))

INDEX = ir.IntType(64)
HALFS = ir.VectorType(ir.HalfType(), LANES)


def dot_bytes(builder: Any, sums: Any, codes: Any, inputs: Any, *, has_vnni: bool) -> Any:
    """Each lane's sum plus its 4 unsigned codes times 4 signed inputs; all are vectors of LANES int32."""
    if has_vnni:
        return lowering.call(builder, "llvm.x86.avx512.vpdpbusd.512", [sums, codes, inputs])
    for byte in range(STEP):
        code = builder.and_(builder.lshr(codes, lowering.int_constant(8 * byte)), lowering.int_constant(255))
        raised = builder.shl(inputs, lowering.int_constant(24 - 8 * byte))
        number = builder.ashr(raised, lowering.int_constant(24))
        sums = builder.add(sums, builder.mul(code, number))
    return sums


@intrinsic
def add_group(typing, tile, matrix, place, inputs, first, stride):
    """The tile plus one group's part.

    `matrix` is (codes, scales) or (codes, scales, minima); its codes are bytes, or words of eight halves of
    bytes. `place` counts groups of tiles from the first. `inputs` is (codes, steps, sums), `first` counts
    groups of rows from the first, and rows are `stride` groups apart.
    """
    has_minima, bits = len(matrix) == 3, _bits(matrix)

    def codegen(context, builder, signature, arguments):
        codes = _Codes(context, builder, (arguments[1], signature.args[1]), arguments[2])
        rows = [
            builder.add(arguments[4], builder.mul(arguments[5], ir.Constant(INDEX, row)))
            for row in range(tile.rows // COLUMNS)
        ]
        group = _Inputs(context, builder, (arguments[3], signature.args[3]), rows)
        # What a symmetric group's codes have too much is taken off beforehand.
        firsts = [
            lowering.int_constant(0)
            if has_minima
            else lowering.splat(builder, group.code_sum(row), lowering.INTS)
            for row in range(len(rows))
        ]
        dots = [[first_sum] * COLUMNS for first_sum in firsts]
        _add_dots(codes, group, dots, bits)
        return _scaled(codes, group, arguments[0], dots, has_minima)

    return tile(tile, matrix, types.intp, inputs, types.intp, types.intp), codegen


def _bits(matrix: Any) -> int:
    return 8 if matrix[0].dtype == types.uint8 else 4


def _element(context: Any, builder: Any, arrays: Any, part: int, place: Any) -> Any:
    """The address of an element of one of a tuple's arrays; `arrays` are their values and types."""
    values, kinds = arrays
    return lowering.address(context, builder, builder.extract_value(values, part), kinds[part], place)


def _times(builder: Any, base: Any, scale: int, offset: int) -> Any:
    return builder.add(builder.mul(base, ir.Constant(INDEX, scale)), ir.Constant(INDEX, offset))


class _Codes:
    """Where a group of a tile lies in the matrix, and how its numbers are loaded."""

    def __init__(self, context: Any, builder: Any, matrix: Any, place: Any) -> None:
        self.builder = builder
        self._context, self._matrix, self._place = context, matrix, place

    def vector(self, index: int, num_vectors: int) -> Any:
        """One of the group's vectors of codes, of all its columns."""
        size = 4 * LANES // (self._matrix[1][0].dtype.bitwidth // 8)  # elements
        place = _times(self.builder, self._place, num_vectors * COLUMNS * size, index * size)
        address = _element(self._context, self.builder, self._matrix, 0, place)
        return self.builder.load(self.builder.bitcast(address, lowering.INTS.as_pointer()), align=1)

    def factors(self, part: int, column: int) -> Any:
        """Scales (part 1) or minima (part 2) of a column's outputs."""
        place = _times(self.builder, self._place, COLUMNS * LANES, column * LANES)
        address = _element(self._context, self.builder, self._matrix, part, place)
        half = self.builder.load(self.builder.bitcast(address, HALFS.as_pointer()), align=2)
        return self.builder.fpext(half, lowering.FLOATS)

    def plain(self, column: int, bits: int) -> list[Any]:
        """The codes of a column's outputs, as integers: a vector for each input of the group, in order."""
        num_vectors = GROUP // STEP * bits // 8
        packed = [self.vector(column * num_vectors + index, num_vectors) for index in range(num_vectors)]
        mask = lowering.int_constant((1 << bits) - 1)
        return [
            self.builder.and_(self.builder.lshr(codes, lowering.int_constant(8 * byte + shift)), mask)
            for shift in range(0, 8, bits)
            for codes in packed
            for byte in range(STEP)
        ]


class _Inputs:
    """Where the rows' codes of one group lie, and how they are loaded."""

    def __init__(self, context: Any, builder: Any, inputs: Any, rows: list[Any]) -> None:
        self.builder = builder
        self._context, self._inputs, self._rows = context, inputs, rows

    def four(self, row: int, step: int) -> Any:
        place = _times(self.builder, self._rows[row], GROUP, STEP * step)
        address = _element(self._context, self.builder, self._inputs, 0, place)
        word = self.builder.load(self.builder.bitcast(address, lowering.INT32.as_pointer()), align=1)
        return lowering.splat(self.builder, word, lowering.INTS)

    def step_size(self, row: int) -> Any:
        return self.builder.load(_element(self._context, self.builder, self._inputs, 1, self._rows[row]))

    def code_sum(self, row: int) -> Any:
        return self.builder.load(_element(self._context, self.builder, self._inputs, 2, self._rows[row]))


def _add_dots(codes: _Codes, inputs: _Inputs, dots: list[list[Any]], bits: int) -> None:
    """Add all products of codes and inputs to each row's vectors, in place."""
    builder = codes.builder
    num_vectors = GROUP // STEP * bits // 8
    for index in range(num_vectors):
        packed = [codes.vector(column * num_vectors + index, num_vectors) for column in range(COLUMNS)]
        for part in range(8 // bits):
            bytes_ = packed if bits == 8 else [_half(builder, vector, part) for vector in packed]
            for row, sums in enumerate(dots):
                four = inputs.four(row, index + part * num_vectors)
                dots[row] = [
                    dot_bytes(builder, total, vector, four, has_vnni=HAS_VNNI)
                    for total, vector in zip(sums, bytes_, strict=True)
                ]


def _half(builder: Any, codes: Any, part: int) -> Any:
    shifted = builder.lshr(codes, lowering.int_constant(4 * part))
    return builder.and_(shifted, lowering.int_constant(0x0F0F0F0F))


def _scaled(codes: _Codes, inputs: _Inputs, tile: Any, dots: list[list[Any]], has_minima: bool) -> Any:
    builder = codes.builder
    scales = [codes.factors(1, column) for column in range(COLUMNS)]
    minima = [codes.factors(2, column) for column in range(COLUMNS)] if has_minima else []
    for row, row_dots in enumerate(dots):
        number = inputs.step_size(row)
        step = lowering.splat(builder, number, lowering.FLOATS)
        for column, dot in enumerate(row_dots):
            index = row * COLUMNS + column
            factor = builder.fmul(scales[column], step)
            value = builder.extract_value(tile, index)
            value = lowering.fma(builder, builder.sitofp(dot, lowering.FLOATS), factor, value)
            if has_minima:
                row_sum = builder.fmul(builder.sitofp(inputs.code_sum(row), lowering.FLOAT), number)
                value = lowering.fma(
                    builder, lowering.splat(builder, row_sum, lowering.FLOATS), minima[column], value
                )
            tile = builder.insert_value(tile, value, index)
    return tile


@intrinsic
def store_rows(typing, tile, bias, column, out, offset, stride):
    """The tile's rows plus `bias[column:]`, from an offset of `out` on and `stride` elements apart."""

    def codegen(context, builder, signature, arguments):
        value, bias_data, first, data, place, step = arguments
        for row in range(tile.rows // COLUMNS):
            for index in range(COLUMNS):
                shift = ir.Constant(INDEX, index * LANES)
                addend = lowering.load(
                    builder,
                    bias,
                    lowering.address(context, builder, bias_data, bias, builder.add(first, shift)),
                )
                total = builder.fadd(builder.extract_value(value, row * COLUMNS + index), addend)
                address = lowering.address(context, builder, data, out, builder.add(place, shift))
                lowering.store(builder, out, address, total)
            place = builder.add(place, step)
        return context.get_dummy_value()

    return types.none(tile, bias, types.intp, out, types.intp, types.intp), codegen


@intrinsic
def widen_group(typing, matrix, place, offset, out, start, stride):
    """One group's numbers as floats: inputs downwards, `stride` elements apart, and outputs side by side.

    `offset` is what a symmetric group's codes have too much, a float32.
    """
    has_minima, bits = len(matrix) == 3, _bits(matrix)

    def codegen(context, builder, signature, arguments):
        codes = _Codes(context, builder, (arguments[0], signature.args[0]), arguments[1])
        excess = lowering.splat(builder, builder.fneg(arguments[2]), lowering.FLOATS)
        for column in range(COLUMNS):
            scale = codes.factors(1, column)
            minimum = codes.factors(2, column) if has_minima else builder.fmul(scale, excess)
            for number, code in enumerate(codes.plain(column, bits)):
                value = lowering.fma(builder, builder.sitofp(code, lowering.FLOATS), scale, minimum)
                row = builder.mul(arguments[5], ir.Constant(INDEX, number))
                target = builder.add(builder.add(arguments[4], row), ir.Constant(INDEX, column * LANES))
                lowering.store(
                    builder, out, lowering.address(context, builder, arguments[3], out, target), value
                )
        return context.get_dummy_value()

    return types.none(matrix, types.intp, types.float32, out, types.intp, types.intp), codegen
