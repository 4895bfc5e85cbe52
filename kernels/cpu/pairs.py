"""Columns of a paged block, and what else goes by how a block's numbers lie.

In float32 a column is LANES numbers that lie side by side. In bfloat16 it is LANES pairs: two dimensions of a
key, or two tokens of a value, lie beside each other, as instructions for dot products take them. So element
`dim` of slot `slot` lies, counted from a block's first of one head, at

    keys     dim // width * width * block_size + slot * width + dim % width
    values   slot // width * width * head_dim + dim * width + slot % width

where the width is 1 or 2. Owns the operations that read and write this order. An array's type says which it
is: uint16 stands for bfloat16. Offsets count elements as in `vectors`.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.lowering import LANES

__all__ = [
    "column_width",
    "copy_lanes",
    "load_column",
    "prefetch",
    "store_key",
    "store_value",
    "store_weights",
]

PAIR_LANES = ir.VectorType(lowering.SHORT, 2 * LANES)
BYTE_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def column_width(typing, array):
    """How many numbers of a column's lane lie side by side: 1 in float32, 2 in bfloat16."""
    width = 1 if array.dtype == types.float32 else 2

    def codegen(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(64), width)

    return types.intp(array), codegen


@intrinsic
def load_column(typing, array, offset):
    """LANES numbers or pairs from an offset on."""
    kind = lowering.VECTOR if array.dtype == types.float32 else lowering.PAIR

    def codegen(context, builder, signature, arguments):
        place = lowering.address(context, builder, arguments[0], array, arguments[1])
        if kind is lowering.VECTOR:
            return lowering.load(builder, array, place)
        return builder.load(builder.bitcast(place, lowering.INTS.as_pointer()), align=2)

    return kind(array, types.intp), codegen


@intrinsic
def copy_lanes(typing, source, offset, target, target_offset):
    """LANES elements as they are, between arrays of one type."""
    if source.dtype != target.dtype:
        return None
    kind = lowering.FLOATS if source.dtype == types.float32 else lowering.SHORTS

    def codegen(context, builder, signature, arguments):
        places = [
            builder.bitcast(lowering.address(context, builder, data, array, start), kind.as_pointer())
            for data, array, start in (
                (*arguments[0:1], source, arguments[1]),
                (arguments[2], target, arguments[3]),
            )
        ]
        builder.store(builder.load(places[0], align=2), places[1], align=2)
        return context.get_dummy_value()

    return types.none(source, types.intp, target, types.intp), codegen


@intrinsic
def store_weights(typing, array, offset, first, second, sums):
    """Store two vectors, one after the other, and add them to `sums` as they were stored, thus rounded."""

    def codegen(context, builder, signature, arguments):
        place = lowering.address(context, builder, arguments[0], array, arguments[1])
        vectors, total = arguments[2:4], arguments[4]
        if array.dtype != types.float32 and lowering.FEATURES.get("avx512bf16", False):
            return _store_dotted(builder, place, vectors, total)
        for index, vector in enumerate(vectors):
            target = builder.gep(place, [ir.Constant(lowering.INT32, index * LANES)])
            lowering.store(builder, array, target, vector)
            if array.dtype != types.float32:
                vector = lowering.widen(builder, lowering.round_lanes(builder, vector))
            total = builder.fadd(total, vector)
        return total

    kind = lowering.VECTOR
    return kind(array, types.intp, kind, kind, kind), codegen


def _store_dotted(builder: Any, place: Any, vectors: Any, total: Any) -> Any:
    """One instruction rounds both vectors, another one adds the products of all pairs and ones."""
    second, first = vectors[1], vectors[0]
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    rounded = lowering.call(builder, name, [second, first], lowering.BFLOAT_PAIRS)
    pairs = builder.bitcast(rounded, lowering.INTS)
    builder.store(pairs, builder.bitcast(place, lowering.INTS.as_pointer()), align=2)
    ones = lowering.int_constant(0x3F803F80)  # two of bfloat16
    return lowering.dot_pairs(builder, pairs, ones, total)


@intrinsic
def prefetch(typing, array, offset):
    """Ask for the cache line of an element, which need not exist."""

    def codegen(context, builder, signature, arguments):
        place = lowering.address(context, builder, arguments[0], array, arguments[1])
        hints = [ir.Constant(lowering.INT32, hint) for hint in (0, 3, 1)]  # to read, near, data
        place = builder.bitcast(place, BYTE_POINTER)
        lowering.call(builder, "llvm.prefetch.p0", [place, *hints], ir.VoidType())
        return context.get_dummy_value()

    return types.none(array, types.intp), codegen


@intrinsic
def store_key(typing, array, offset, stride, vector):
    """LANES dimensions of one slot, from an even one on: `stride` elements from one column to the next."""

    def codegen(context, builder, signature, arguments):
        data, place, step, value = arguments
        kind, single = lowering.FLOATS, lowering.FLOAT
        if array.dtype != types.float32:
            kind, single = ir.VectorType(lowering.INT32, LANES // 2), lowering.INT32
            value = builder.bitcast(lowering.round_lanes(builder, value), kind)
        for lane in range(kind.count):
            target = lowering.address(context, builder, data, array, place)
            element = builder.extract_element(value, ir.Constant(lowering.INT32, lane))
            builder.store(element, builder.bitcast(target, single.as_pointer()), align=2)
            place = builder.add(place, step)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, lowering.VECTOR), codegen


@intrinsic
def store_value(typing, array, offset, vector):
    """LANES dimensions of one slot, from its first one's element on; nothing of the slot beside it."""

    def codegen(context, builder, signature, arguments):
        data, start, value = arguments
        place = lowering.address(context, builder, data, array, start)
        if array.dtype == types.float32:
            lowering.store(builder, array, place, value)
            return context.get_dummy_value()
        spread = builder.zext(lowering.round_lanes(builder, value), lowering.INTS)
        _store_even(builder, builder.bitcast(spread, PAIR_LANES), place)
        return context.get_dummy_value()

    return types.none(array, types.intp, lowering.VECTOR), codegen


def _store_even(builder: Any, value: Any, place: Any) -> None:
    """The first element of each pair. The last pair's second one, which is masked, may not exist."""
    mask_kind = ir.VectorType(ir.IntType(1), 2 * LANES)
    mask = ir.Constant(mask_kind, [1, 0] * LANES)
    arguments = [value, builder.bitcast(place, PAIR_LANES.as_pointer()), mask]
    lowering.call(builder, "llvm.masked.store.v32i16.p0", arguments, ir.VoidType())
