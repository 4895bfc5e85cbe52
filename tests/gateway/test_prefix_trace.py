"""Names of a prompt's blocks, as they are kept with its usage."""

from array import array

from gateway.prefix_trace import NAME_BYTES, trace_of


def packed(count: int, first: int = 0) -> bytes:
    return array("i", range(first, first + count)).tobytes()


def test_there_is_a_name_for_each_whole_block() -> None:
    assert len(trace_of(b"n", packed(35), 16)) == 2 * NAME_BYTES
    assert trace_of(b"n", packed(15), 16) == b""


def test_equal_beginnings_have_equal_names_and_nothing_else_does() -> None:
    one = trace_of(b"n", packed(48), 16)
    other = trace_of(b"n", packed(32) + packed(16, 500), 16)
    later = trace_of(b"n", packed(16, 500) + packed(32, 16), 16)

    assert one[: 2 * NAME_BYTES] == other[: 2 * NAME_BYTES]
    assert one[2 * NAME_BYTES :] != other[2 * NAME_BYTES :]
    assert one[NAME_BYTES : 2 * NAME_BYTES] != later[NAME_BYTES : 2 * NAME_BYTES]


def test_namespaces_share_no_names() -> None:
    assert trace_of(b"n", packed(16), 16) != trace_of(b"m", packed(16), 16)
