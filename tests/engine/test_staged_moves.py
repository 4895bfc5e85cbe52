"""Moves through memory on the device: every byte right in any order that streams allow, nothing left over."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.staged_moves import Cut, Run, StagedMoves
from kernels import Kernels
from tests.engine.slow_lanes import Machine

KERNELS = Kernels.reference()
WHOLE = Cut()
CUTS = [WHOLE, Cut(part_bytes=1, copy_bytes=1), Cut(part_bytes=400, copy_bytes=100), Cut(1 << 20, 130)]


def make_pool(num_layers: int = 7, num_blocks: int = 12, row_bytes: int = 48) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (2, num_layers, num_blocks, row_bytes)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def moves_of(pool: torch.Tensor, machine: Machine, cut: Cut = WHOLE) -> StagedMoves:
    return StagedMoves(pool, KERNELS, bus=machine.bus, kernels=machine.kernels, cut=cut)


def run_of(pool: torch.Tensor, *blocks: int, seed: int = 5) -> Run:
    """Blocks, and new bytes for them."""
    _, num_layers, _, row_bytes = pool.shape
    shape = (len(blocks), 2, num_layers, row_bytes)
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return torch.tensor(blocks, dtype=torch.int64), source


def written(pool: torch.Tensor, *runs: Run) -> torch.Tensor:
    expected = pool.clone()
    for blocks, source in runs:
        expected[:, :, blocks] = source.permute(1, 2, 0, 3)
    return expected


@given(
    num_layers=st.integers(1, 9),
    row_bytes=st.sampled_from([1, 16, 48]),
    part_bytes=st.sampled_from([1, 100, 500, 1 << 20]),
    copy_bytes=st.sampled_from([1, 50, 200, 1 << 20]),
    sizes=st.lists(st.integers(0, 5), max_size=3),
    seed=st.integers(0, 1000),
)
def test_every_byte_arrives_whatever_the_parts_and_the_order(
    num_layers: int, row_bytes: int, part_bytes: int, copy_bytes: int, sizes: list[int], seed: int
) -> None:
    pool = make_pool(num_layers, 15, row_bytes)
    before, ends = pool.clone(), [sum(sizes[: place + 1]) for place in range(len(sizes))]
    order = torch.randperm(15, generator=torch.Generator().manual_seed(seed)).tolist()
    runs = [run_of(pool, *order[end - size : end], seed=end) for end, size in zip(ends, sizes, strict=True)]
    machine = Machine(seed)
    moves = moves_of(pool, machine, Cut(part_bytes, copy_bytes))

    assert list(moves.scatter(runs)) == sizes

    assert torch.equal(pool, written(before, *runs))
    out = torch.zeros(15, 2, num_layers, row_bytes, dtype=torch.uint8)
    moves.gather((torch.tensor(order), out))
    assert torch.equal(out, pool[:, :, order].permute(2, 0, 1, 3))
    assert machine.is_idle


@pytest.mark.parametrize("cut", CUTS)
def test_a_run_is_told_when_all_its_bytes_are_there_and_the_next_is_on_its_way(cut: Cut) -> None:
    pool, machine = make_pool(), Machine()
    before = pool.clone()
    first, second, third = run_of(pool, 1, 2), run_of(pool, 9), run_of(pool, 4, 0, 7)
    moving = moves_of(pool, machine, cut).scatter([first, second, third])

    assert next(moving) == 2
    expected = written(before, first)[:, :, [1, 2]]
    assert torch.equal(pool[:, :, [1, 2]], expected)
    assert machine.bus.asked or machine.kernels.asked
    assert list(moving) == [1, 3]
    assert torch.equal(pool, written(before, first, second, third))


@pytest.mark.parametrize("cut", CUTS)
def test_memory_on_the_device_is_two_parts_however_much_moves(cut: Cut) -> None:
    pool, machine = make_pool(num_layers=20, num_blocks=200), Machine()
    out = torch.zeros(200, 2, 20, 48, dtype=torch.uint8)
    moves = moves_of(pool, machine, cut)

    moves.gather((torch.arange(200), out))
    list(moves.scatter([(torch.arange(200), out)] * 3))

    least = 2 * 48 * min(20, -(-cut.copy_bytes // 48))  # one block's layers that travel together
    assert len(machine.buffers) == 4
    assert max(machine.buffers) <= max(cut.part_bytes, least)


def test_layers_go_in_their_order_and_the_bus_carries_one_part_while_a_kernel_works() -> None:
    pool, machine = make_pool(num_layers=6), Machine()
    seen: list[tuple[int, int, bool]] = []

    def scatter(layers: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor) -> None:
        first = (layers.storage_offset() - pool.storage_offset()) // pool.stride(1)
        seen.append((first, layers.shape[1], bool(machine.bus.asked)))
        KERNELS.scatter_blocks(layers, blocks, staging)

    moves = StagedMoves(
        pool,
        replace(KERNELS, scatter_blocks=scatter),
        bus=machine.bus,
        kernels=machine.kernels,
        cut=Cut(copy_bytes=96),
    )
    list(moves.scatter([run_of(pool, 1, 5)]))

    assert [(first, count) for first, count, _ in seen] == [(0, 2), (2, 2), (4, 2)]
    assert seen[0][2], "the second part's copy was asked for before the first part's kernel ran"


@pytest.mark.parametrize("seed", range(10))
def test_blocks_are_read_and_written_after_what_steps_were_asked_for(seed: int) -> None:
    pool, machine = make_pool(), Machine(seed)
    machine.steps.ask(lambda: pool[:, :, 3].fill_(7))
    out = torch.zeros(1, 2, 7, 48, dtype=torch.uint8)
    moves_of(pool, machine).gather((torch.tensor([3]), out))
    assert (out == 7).all()

    machine.steps.ask(lambda: pool[:, :, 3].fill_(8))
    run = run_of(pool, 3)
    list(moves_of(pool, machine).scatter([run]))
    assert torch.equal(pool[:, :, 3], run[1][0])


def test_the_bus_brings_the_first_part_while_steps_still_run_and_kernels_wait_for_them() -> None:
    pool, machine = make_pool(), Machine()
    machine.steps.ask(lambda: pool[:, :, 3].fill_(8))
    run = run_of(pool, 3)

    def runs() -> Iterator[Run]:
        yield run
        while machine.bus.advance():
            pass
        assert not machine.bus.asked, "the copy waits for no step"
        assert not machine.kernels.advance(), "and the kernel does"

    list(moves_of(pool, machine).scatter(runs()))

    assert torch.equal(pool, written(pool, run))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("num_well", [0, 1, 3])
def test_what_fails_leaves_nothing_under_way(cut: Cut, num_well: int) -> None:
    pool, machine = make_pool(), Machine()
    run = run_of(pool, 1, 2, 3)

    def runs() -> Iterator[Run]:
        yield from [run] * num_well
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(moves_of(pool, machine, cut).scatter(runs()))

    assert machine.is_idle


def test_who_asks_no_further_waits_for_what_is_under_way() -> None:
    pool, machine = make_pool(), Machine()
    runs = [run_of(pool, block) for block in (1, 2, 3)]
    moving = moves_of(pool, machine, Cut(copy_bytes=1)).scatter(runs)
    next(moving)

    moving.close()

    assert machine.is_idle


def test_threads_do_not_share_memory() -> None:
    pool, machine = make_pool(num_blocks=40), Machine()
    moves = moves_of(pool, machine, Cut(part_bytes=200, copy_bytes=50))
    before = pool.clone()
    into = [run_of(pool, *range(start, start + 5), seed=start) for start in range(0, 20, 5)]
    rows = torch.zeros(20, 2, 7, 48, dtype=torch.uint8)
    out = list(zip(torch.arange(20, 40).split(5), rows.split(5), strict=True))
    threads = [Thread(target=lambda run=run: list(moves.scatter([run, run]))) for run in into]
    threads += [Thread(target=moves.gather, args=(run,)) for run in out]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert torch.equal(pool, written(before, *into))
    for blocks, found in out:
        assert torch.equal(found, before[:, :, blocks].permute(2, 0, 1, 3))
