"""Leaders: exactly those of the plain definition where blocks form a tree, and never a wrong one."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from kernels.partitions import PARTITION_TOKENS, find_leaders

Table = npt.NDArray[np.int32]
SIZE = 64  # tokens of a block: four to a partition


def _plain(tables: Table, num_partitions: int) -> list[list[int]]:
    """The first sequence with the same blocks."""
    size = PARTITION_TOKENS // SIZE
    pieces = [[row[p * size : (p + 1) * size].tolist() for p in range(num_partitions)] for row in tables]
    return [
        [next(j for j in range(len(tables)) if pieces[j][p] == pieces[i][p]) for p in range(num_partitions)]
        for i in range(len(tables))
    ]


@st.composite
def paths(draw: st.DrawFn) -> Table:
    """Rows of 13 blocks, each of which parts from an earlier one somewhere."""
    ids = iter(draw(st.permutations(range(13 * 8))))
    rows = [[next(ids) for _ in range(13)]]
    for _ in range(draw(st.integers(1, 6))):
        num_shared = draw(st.integers(0, 13))
        rows.append(rows[draw(st.integers(0, len(rows) - 1))][:num_shared])
        rows[-1] += [next(ids) for _ in range(13 - num_shared)]
    return np.array(rows, np.int32)


@given(paths())
def test_leaders_in_a_tree_are_the_first_with_the_same_blocks(tables: Table) -> None:
    assert find_leaders(tables, 13 * SIZE, SIZE).tolist() == _plain(tables, 3)


@given(st.lists(st.lists(st.integers(0, 2), min_size=8, max_size=8), min_size=2, max_size=6))
def test_whoever_has_a_leader_has_the_leaders_blocks_whatever_the_tables_say(rows: list[list[int]]) -> None:
    tables = np.array(rows, np.int32)

    leaders = find_leaders(tables, 8 * SIZE, SIZE)

    size = PARTITION_TOKENS // SIZE
    for (sequence, partition), leader in np.ndenumerate(leaders):
        piece = slice(partition * size, (partition + 1) * size)
        assert tables[leader, piece].tolist() == tables[sequence, piece].tolist()
        assert leaders[leader, partition] == leader


def test_a_block_computed_beside_the_tree_parts_one_partition_only() -> None:
    tables = np.array([range(12), [*range(5), 99, *range(6, 12)]], np.int32)

    assert find_leaders(tables, 12 * SIZE, SIZE).tolist() == [[0, 0, 0], [0, 1, 0]]


def test_a_sequence_alone_has_no_leaders() -> None:
    assert find_leaders(np.zeros((1, 32), np.int32), 512, 16).shape == (1, 0)


def test_short_contexts_have_no_leaders() -> None:
    assert find_leaders(np.zeros((3, 16), np.int32), 255, 16).shape == (3, 0)


def test_blocks_longer_than_a_partition_have_no_leaders() -> None:
    assert find_leaders(np.zeros((3, 4), np.int32), 2048, 512).shape == (3, 0)
