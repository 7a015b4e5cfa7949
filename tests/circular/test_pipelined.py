"""Loads by the threads that compute: single copies, and rings of every depth, by TMA, cp.async and plain loads. Races are checked; every stage is used more than twice."""

from __future__ import annotations

import pytest
import torch
from by_hand import one_branch
from fusion_check import poisoned_outputs
from scheduled import L, check, compiles, flat, program, run

from weft import FusionDefinition, MemoryType, ParallelType
from weft.schedule.circular import circular_buffer
from weft.schedule.inline import inline_to

P = ParallelType
LOADS = {"tma": L.tma, "cp_async": L.cp_async, "plain": L.set}


def vectors(count: int, elems: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    xs = [torch.randn(elems, generator=torch.Generator().manual_seed(n)) for n in range(count)]
    return xs, sum(x.double() for x in xs) + 1.0  # type: ignore[return-value]


def elems_for(stages: int, blocks: int = 2, tile: int = 128) -> int:
    """More than two laps of each block, and a last tile of 20 elements."""
    return tile * blocks * (2 * stages + 1) - tile + 20


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("load", LOADS)
def test_copies_without_a_ring(load: str, store: bool) -> None:
    fd = flat(LOADS[load], store=store)
    for elems in (elems_for(1), 4, 128, 132):
        check(fd, *vectors(1, elems))
    compiles(fd)


@pytest.mark.parametrize("stages, prefetch", [(s, p) for s in range(2, 11) for p in range(1, s)])
def test_rings_of_every_depth_and_distance(stages: int, prefetch: int) -> None:
    xs, expected = vectors(1, elems_for(stages))
    for load in LOADS.values():
        check(flat(load, stages=stages, prefetch=prefetch), xs, expected)


@pytest.mark.parametrize("load", LOADS)
def test_fewer_iterations_than_stages(load: str) -> None:
    fd = flat(LOADS[load], stages=6, prefetch=5)
    for elems in (4, 128, 256, 300, 128 * 5, 128 * 12):
        check(fd, *vectors(1, elems))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    "options",
    [dict(vector=4), dict(unroll=2), dict(vector=4, unroll=2, tile=512), dict(store=True, vector=4), dict(inputs=3), dict(inputs=2, store=True), dict(nested=3)],
    ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items()),
)
def test_rings_with_vectors_unrolled_loops_several_tensors_and_inner_loops(load: str, options: dict) -> None:
    fd = flat(LOADS[load], stages=3, prefetch=2, **options)
    check(fd, *vectors(options.get("inputs", 1), 2 * elems_for(3, tile=options.get("tile", 128))))
    compiles(fd)


UNSWITCHED = [
    dict(), dict(vector=4, unroll=2, tile=512), dict(inputs=3), dict(store=True, vector=4), dict(nested=3), dict(nested=3, vector=4, unroll=2, tile=512, inputs=2),
]  # fmt: skip


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("unswitch", ["around", "inside", "shared"])
@pytest.mark.parametrize("options", UNSWITCHED, ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items()))
def test_unswitched_rings(load: str, unswitch: str, options: dict) -> None:
    """Of the sizes, the first are free of bounds throughout, the next nowhere, the last in some iterations; one has fewer iterations than stages."""
    fd = flat(LOADS[load], stages=3, prefetch=2, unswitch=unswitch, **options)
    tile = options.get("tile", 128)
    step = 2 * tile * options.get("nested", 1)
    for elems in (9 * step, tile, 20, 9 * step - tile + 20, step):
        with poisoned_outputs():
            check(fd, *vectors(options.get("inputs", 1), elems))
    compiles(fd)
    text = program(fd).text
    assert "else {" in text or ", whole" in text


@pytest.mark.parametrize("load", ["cp_async", "plain"])
@pytest.mark.parametrize("nested", [0, 3])
@pytest.mark.parametrize("unswitch", ["around", "inside"])
def test_whole_tiles_take_the_branch_without_bounds(unswitch: str, nested: int, load: str) -> None:
    """Loads ahead are bounded by the last iteration, not by one that lies beyond it."""
    with one_branch("fast"), poisoned_outputs():
        fd = flat(LOADS[load], stages=3, prefetch=2, unswitch=unswitch, nested=nested)
        for tiles in (2 * max(nested, 1), 18 * max(nested, 1)):
            check(fd, *vectors(1, 128 * tiles))


@pytest.mark.parametrize("unswitch", ["around", "inside", "shared"])
@pytest.mark.parametrize("stages, prefetch", [(2, 1), (4, 1), (5, 4), (7, 3)])
def test_unswitched_rings_of_every_kind_of_load_wait_alike_in_both_branches(stages: int, prefetch: int, unswitch: str) -> None:
    for load in LOADS.values():
        fd = flat(load, stages=stages, prefetch=prefetch, unswitch=unswitch)
        for elems in (128 * 2 * (2 * stages + 1), elems_for(stages)):
            with poisoned_outputs():
                check(fd, *vectors(1, elems))


@pytest.mark.parametrize("rings", [((4, 3), (2, 1)), ((2, 1), (4, 3)), ((5, 2), (6, 5))])
def test_rings_of_cp_async_with_different_distances_wait_for_the_nearer_one(rings: tuple[tuple[int, int], ...]) -> None:
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1], contiguity=True) for _ in rings]
        y = fd.ops.mul(*inputs)
        fd.add_output(y)
        caches = [x.cache_after(L.cp_async) for x in inputs]
        for t in (*caches, y):
            t.split(0, 64)
            t.split(0, 1)
            t.axis(1).parallelize(P.grid_x)
            t.axis(2).parallelize(P.block_x)
        for t in caches:
            t.set_memory_type(MemoryType.shared)
        inline_to(fd.fusion, {t: 2 for t in fd.fusion.tensors()})  # type: ignore[arg-type]
        for t, (stages, prefetch) in zip(caches, rings):
            circular_buffer(t, stages, prefetch)
    a, b = torch.randn(64 * 15 - 8), torch.randn(64 * 15 - 8)
    with poisoned_outputs():
        check(fd, [a, b], a.double() * b.double())


def test_a_kernel_may_ring_twice_with_different_depths() -> None:
    """Two inputs in one loop, one by TMA with 4 stages, the other by cp.async with 2."""
    with FusionDefinition() as fd:
        x, z = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        y = fd.ops.mul(x, z)
        fd.add_output(y)
        xs, zs = x.cache_after(L.tma), z.cache_after(L.cp_async)
        for t in (xs, zs, y):
            t.split(0, 64)
            t.split(0, 1)
            t.axis(1).parallelize(P.grid_x)
            t.axis(2).parallelize(P.tma if t is xs else P.block_x)
        for t, stages, prefetch in ((xs, 4, 3), (zs, 2, 1)):
            t.set_memory_type(MemoryType.shared)
        inline_to(fd.fusion, {t: 2 for t in fd.fusion.tensors()})  # type: ignore[arg-type]
        circular_buffer(xs, 4, 3)
        circular_buffer(zs, 2, 1)
    a, b = torch.randn(64 * 9 - 8), torch.randn(64 * 9 - 8)
    check(fd, [a, b], a.double() * b.double())


@pytest.mark.parametrize("load", LOADS)
def test_a_ring_within_a_ring(load: str) -> None:
    """Rows of the outer tile go round; within, pieces of a row are copied on, and go round as well."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 256], contiguity=True)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y)
        xs = x.cache_after(LOADS[load])
        inner = xs.cache_after()
        for t in (xs, inner):
            t.set_memory_type(MemoryType.shared)
        for t in (xs, inner, y):
            t.split(1, 32)  # [rows, pieces, 32]
            if t is xs and load == "tma":
                t.merge(1, 2)
                t.axis(1).parallelize(P.tma)
            else:
                t.axis(2).parallelize(P.block_x)
        inline_to(fd.fusion, {xs: 1, inner: 2})  # type: ignore[arg-type]
        circular_buffer(xs, 3, 2)
        circular_buffer(inner, 2, 1)
    x_ = torch.randn(7, 256)
    check(fd, [x_], x_.double() + 1)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("across_threads", [False, True])
def test_reductions_over_the_loop_of_the_ring(load: str, across_threads: bool) -> None:
    """Sums of rows, tile by tile: each thread its own part of all tiles, then all threads; or of columns, a thread per column."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.sum(x, [1] if across_threads else [0])
        fd.add_output(y)
        xs = x.cache_after(LOADS[load])
        xs.set_memory_type(MemoryType.shared)
        before = y.cache_before()
        if across_threads:  # [rows, tiles, 64 threads]
            for t in (xs, before):
                t.split(1, 64)
                t.axis(0).parallelize(P.grid_x)
            xs.axis(2).parallelize(P.tma if load == "tma" else P.block_x)
            before.axis(2).parallelize(P.block_x)
            y.axis(0).parallelize(P.grid_x)
            partial = before.rfactor([1])
        else:  # [columns: blocks, 64 threads; rows]
            for t in (xs, before, y):
                t.split(-1, 64)
            for t in (xs, before):
                t.reorder({0: 1, 1: 0})  # [blocks, rows, 64]
            for t in (xs, before, y):
                t.axis(0).parallelize(P.grid_x)
            xs.axis(2).parallelize(P.tma if load == "tma" else P.block_x)
            before.axis(2).parallelize(P.block_x)
            y.axis(1).parallelize(P.block_x)
            partial = before
        inline_to(fd.fusion, {xs: 2, partial: 1})  # type: ignore[arg-type]
        circular_buffer(xs, 3, 2)
    x_ = torch.randn(9, 64 * 8 - 12) if across_threads else torch.randn(29, 128 - 8)
    check(fd, [x_], x_.double().sum(1 if across_threads else 0))


def test_sizes_may_change_from_run_to_run() -> None:
    fd = flat(stages=4, prefetch=3, store=True)
    for elems in (4, 1000, 5000, 128):
        xs, expected = vectors(1, elems)
        (out,) = run(fd, xs)
        torch.testing.assert_close(out.double(), expected)
