"""Tiles: a few vectors, one below the other, that stay in registers while a loop adds to them.

Owns the operations of small matrix products. Offsets count elements as in `vectors`.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering

__all__ = ["accumulate", "store_tile", "zero_tile"]


@intrinsic(prefer_literal=True)
def zero_tile(typing, rows):
    """A tile of zeros; `rows` is a constant."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    kind = lowering.Tile(rows.literal_value)

    def codegen(context, builder, signature, arguments):
        return ir.Constant(ir.ArrayType(lowering.FLOATS, kind.rows), [lowering.constant(0.0)] * kind.rows)

    return kind(rows), codegen


@intrinsic
def store_tile(typing, tile, array, offset, stride):
    """A tile's vectors, `stride` elements apart."""

    def codegen(context, builder, signature, arguments):
        value, data, place, step = arguments
        for row in range(tile.rows):
            address = lowering.address(context, builder, data, array, place)
            lowering.store(builder, array, address, builder.extract_value(value, row))
            place = builder.add(place, step)
        return context.get_dummy_value()

    return types.none(tile, array, types.intp, types.intp), codegen


@intrinsic
def accumulate(typing, tile, factors, offset, stride, vector):
    """Row r of the tile plus factors[offset + r * stride] times the vector; factors are float32."""

    def codegen(context, builder, signature, arguments):
        value, data, place, step, other = arguments
        for row in range(tile.rows):
            factor = builder.load(lowering.address(context, builder, data, factors, place))
            product = lowering.fma(
                builder,
                lowering.splat(builder, factor, lowering.FLOATS),
                other,
                builder.extract_value(value, row),
            )
            value = builder.insert_value(value, product, row)
            place = builder.add(place, step)
        return value

    return tile(tile, factors, types.intp, types.intp, lowering.VECTOR), codegen
