"""The cut of attention into tasks: every part once, what is shared together, nothing else."""

import numpy as np
import numpy.typing as npt
import pytest

from kernels.cpu.attention_plan import MAX_TASK_ROWS, TILE_TOKENS, plan

NUM_KV_HEADS, GROUP, NUM_WORKERS = 2, 3, 1


class Plan:
    """A plan in plain words: for each task its segment and the (sequence, first token) of its parts."""

    def __init__(self, contexts: list[int], lengths: list[int], leaders: list[list[int]]) -> None:
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        table = np.array(leaders, np.int32).reshape(len(contexts), -1)
        self.tiles, self.parts, self.tasks, self.table, self.num_rows = plan(
            np.array(contexts, np.int32), starts, table, GROUP, NUM_KV_HEADS, NUM_WORKERS
        )

    def members(self) -> list[tuple[int, list[tuple[int, int]]]]:
        found = []
        for task in self.tasks:
            places, place = [], task["first_part"]
            while place >= 0:
                tile = self.tiles[self.parts[place]["tile"]]
                places.append((int(tile["sequence"]), int(tile["first_token"])))
                place = self.parts[place]["next_part"]
            found.append((int(task["segment"]), places))
        return found

    def rows(self) -> npt.NDArray[np.int64]:
        """Of every part and key head."""
        return np.concatenate(
            [
                part["row"]
                + head * part["row_stride"]
                + np.arange(self.tiles[part["tile"]]["num_tokens"] * GROUP)
                for part in self.parts
                for head in range(NUM_KV_HEADS)
            ]
        )


def test_what_lies_under_one_leader_is_one_task() -> None:
    found = Plan([600, 530, 520], [1, 1, 1], [[0, 0], [0, 1], [0, 1]])

    assert found.members() == [
        (0, [(0, 0), (1, 1), (2, 2)]),
        (1, [(0, 0)]),
        (1, [(1, 1), (2, 2)]),
        (2, [(0, 0)]),
        (2, [(1, 1)]),
        (2, [(2, 2)]),
    ]


def test_a_segment_that_a_token_does_not_see_whole_is_its_own() -> None:
    found = Plan([512, 511, 513], [1, 1, TILE_TOKENS + 1], [[0, 0], [0, 0], [0, 0]])

    last = 2 + TILE_TOKENS  # a tile of its own, the only one of its span that sees all
    assert (1, [(0, 0), (2, last)]) in found.members()
    assert (1, [(1, 1)]) in found.members()
    assert (1, [(2, 2)]) in found.members()


def test_spans_of_some_tokens_share_as_single_ones_do() -> None:
    found = Plan([600, 600], [5, 1], [[0, 0], [0, 0]])

    assert found.members()[:2] == [(0, [(0, 0), (1, 5)]), (1, [(0, 0), (1, 5)])]


def test_a_task_has_no_more_rows_than_it_may() -> None:
    count = 100
    found = Plan([257] * count, [1] * count, [[0]] * count)

    assert max(task["num_rows"] for task in found.tasks) <= MAX_TASK_ROWS
    shared = [places for segment, places in found.members() if segment == 0]
    assert len(shared) == -(-count * GROUP // MAX_TASK_ROWS)


def test_a_task_is_so_small_that_every_worker_has_some() -> None:
    found = Plan([256] * 8, [1] * 8, [[0]] * 8)

    assert len(found.tasks) * NUM_KV_HEADS >= 4 * NUM_WORKERS


@pytest.mark.parametrize("leaders", [[[]] * 4, [[0, 0, 0]] * 4, [[0, 0, 0], [0, 1, 1], [0, 1, 2], [3, 3, 3]]])
def test_every_row_of_every_part_has_a_place_of_its_own(leaders: list[list[int]]) -> None:
    found = Plan([800, 700, 257, 30], [1, 20, 9, 30], leaders)

    assert sorted(found.rows()) == list(range(found.num_rows))
    pairs = [(segment, place) for segment, places in found.members() for place in places]
    assert len(pairs) == len(set(pairs)) == len(found.parts)
    assert all(tile["num_tokens"] <= TILE_TOKENS for tile in found.tiles)


def test_a_tasks_members_are_the_tokens_of_its_parts_and_what_each_sees() -> None:
    found = Plan([300, 260], [3, 1], [[0], [0]])

    seen = [
        [
            (int(member["token"]), int(member["num_visible"]))
            for member in found.table[task["first_member"] :][: task["num_rows"] // GROUP]
        ]
        for task in found.tasks
    ]
    assert seen == [[(0, 256), (1, 256), (2, 256), (3, 256)], [(0, 42), (1, 43), (2, 44)], [(3, 4)]]
    assert [int(task["num_seen"]) for task in found.tasks] == [256, 44, 4]
