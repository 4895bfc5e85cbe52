"""Tiles: a few vectors, one below the other, that stay in registers while a loop adds to them.

Owns the operations of small matrix products. Offsets count elements as in `vectors`.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering

__all__ = ["accumulate", "accumulate_dots", "store_tile", "zero_tile"]


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


def _accumulate(name: str, add_pairs: Any) -> Any:
    def accumulate(typing, tile, factors, offset, stride, column):
        single, kind = (
            (lowering.FLOAT, lowering.FLOATS)
            if column is lowering.VECTOR
            else (lowering.INT32, lowering.INTS)
        )

        def codegen(context, builder, signature, arguments):
            value, data, place, step, other = arguments
            add = lowering.fma if column is lowering.VECTOR else add_pairs
            for row in range(tile.rows):
                address = lowering.address(context, builder, data, factors, place)
                factor = builder.load(builder.bitcast(address, single.as_pointer()), align=2)
                repeated = lowering.splat(builder, factor, kind)
                total = add(builder, repeated, other, builder.extract_value(value, row))
                value = builder.insert_value(value, total, row)
                place = builder.add(place, step)
            return value

        return tile(tile, factors, types.intp, types.intp, column), codegen

    accumulate.__name__ = name
    return intrinsic(accumulate)


# (tile, factors, offset, stride, column): row r of the tile plus factors[offset + r * stride] times a vector,
# or plus the products of the pair of factors there and each of the column's pairs. Factors have the type of
# the column's numbers.
accumulate = _accumulate("accumulate", lowering.add_pair_products)
accumulate_dots = _accumulate("accumulate_dots", lowering.dot_pairs)  # by one instruction where there is one
