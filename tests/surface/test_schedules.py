"""Schedules by hand, as programs for nvFuser write them: copies, vectors, reductions cut in parts, tiles in shared memory, TMA, warps that load.

Read first: `SCHEDULES`. All run in the emulator with its checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixture import DEVICE

from weft import FusionDefinition, LoadStoreOpType, MemoryType, ParallelType

P = ParallelType
SCHEDULES: dict[str, tuple[Callable[[FusionDefinition], None], list[tuple[int, ...]], Callable[..., torch.Tensor]]] = {}


def schedule(reference: Callable[..., torch.Tensor], *shapes: tuple[int, ...], name: str = "") -> Callable[[Any], Any]:
    def add(build: Callable[[FusionDefinition], None]) -> Callable[[FusionDefinition], None]:
        SCHEDULES[name or build.__name__] = build, list(shapes), reference
        return build

    return add


def tensor(fd: FusionDefinition, rank: int = 2) -> Any:
    return fd.define_tensor([-1] * rank, contiguity=True)


def bind(t: Any, **kinds: Any) -> None:
    for kind, axis in kinds.items():
        t.axis(axis).parallelize(getattr(P, kind))


@schedule(lambda x: x, (33, 77))
def threads_over_a_merged_axis(fd: FusionDefinition) -> None:
    out = fd.ops.set(tensor(fd))
    fd.add_output(out)
    out.merge(0, 1)
    out.split(0, 256)
    bind(out, grid_x=0, block_x=1)


@schedule(torch.relu, (33, 76))
def vectors_on_both_sides(fd: FusionDefinition) -> None:
    x = tensor(fd)
    out = fd.ops.relu(x)
    fd.add_output(out)
    copy = x.cache_after()
    out.cache_before()
    out.merge(0, 1)
    out.split(0, 4)
    out.split(0, 128)
    bind(out, grid_x=0, block_x=1)
    fd.sched.transform_like(out)
    fd.sched.parallelize_like(out)
    bind(copy, vectorize=-1)
    bind(out, vectorize=-1)
    fd.sched.inline_most()


@schedule(lambda x: x + 1, (33, 77))
def unrolled_and_unswitched(fd: FusionDefinition) -> None:
    x = tensor(fd)
    out = fd.ops.add(x, 1.0)
    fd.add_output(out)
    x.cache_after()
    out.cache_before()
    out.merge(0, 1)
    out.split(0, 4)
    out.split(0, 1)
    out.split(0, 128)
    bind(out, grid_x=0, block_x=1, unswitch=2, unroll=3)
    fd.sched.transform_like(out)
    fd.sched.parallelize_like(out)
    fd.sched.inline_at(out, 3, best_effort=True)


def reduction(axes: list[int]) -> Callable[..., Any]:
    def make(fd: FusionDefinition) -> Any:
        out = fd.ops.sum(tensor(fd), axes)
        fd.add_output(out)
        return out

    return make


@schedule(lambda x: x.sum(1), (7, 100))
def a_row_per_block(fd: FusionDefinition) -> None:
    bind(reduction([1])(fd), grid_x=0, block_x=1)


@schedule(lambda x: x.sum(1), (5, 1000))
def rows_cut_by_rfactor(fd: FusionDefinition) -> None:
    out = reduction([1])(fd)
    out.split(1, 32)
    bind(out.rfactor([1]), grid_x=0, block_x=2)
    bind(out, grid_x=0, block_x=1)


@schedule(lambda x: x.sum(1), (5, 2000))
def rows_over_several_blocks(fd: FusionDefinition) -> None:
    out = reduction([1])(fd)
    out.split(1, 256)
    out.split(1, 2, inner_split=False)
    out.rfactor([2])
    bind(out, grid_x=0, grid_y=1, block_x=2)
    fd.sched.parallelize_like(out)


@schedule(lambda x: x.sum(), (10, 500))
def everything_in_one_block(fd: FusionDefinition) -> None:
    out = reduction([0, 1])(fd)
    out.merge(0, 1)
    out.split(0, 128)
    bind(out.rfactor([0]), block_x=1)
    bind(out, block_x=0)


@schedule(lambda x: x.sum(0), (100, 70))
def columns(fd: FusionDefinition) -> None:
    out = reduction([0])(fd)
    out.split(1, 32)
    bind(out, grid_x=1, block_x=2)
    out.split(0, 8)
    bind(out.rfactor([0]), block_y=1)
    bind(out, block_y=0)
    fd.sched.parallelize_like(out)


@schedule(lambda x: x.softmax(1), (5, 512))
def softmax_of_four_elements_per_thread(fd: FusionDefinition) -> None:
    x, o = tensor(fd), fd.ops
    largest = o.max(x, [1])
    e = o.exp(o.sub(x, o.broadcast(largest, [False, True])))
    out = o.truediv(e, o.broadcast(o.sum(e, [1]), [False, True]))
    fd.add_output(out)
    x.cache_after()
    out.cache_before()
    largest.split(-1, 4)
    bind(largest, grid_x=0, block_x=1)
    fd.sched.transform_like(largest)
    fd.sched.parallelize_like(largest)
    fd.sched.inline_most()


def transposed(is_swizzled: bool) -> Callable[[FusionDefinition], None]:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd)
        middle = fd.ops.permute(x, [1, 0])
        out = fd.ops.set(middle)
        fd.add_output(out)
        tile = x.cache_after()
        tile.set_memory_type(MemoryType.shared)
        out.split(1, 32)
        out.split(0, 32)
        out.reorder({1: 2, 2: 1})
        fd.sched.transform_like(out)
        bind(out, grid_x=0, grid_y=1)
        fd.sched.parallelize_like(out)
        fd.sched.inline_at(out, 2)
        if is_swizzled:
            tile.swizzle(2, 3)
        for t in (tile, out, middle):
            t.merge(2, 3)
            t.split(2, 256)
            bind(t, block_x=3)

    return build


schedule(lambda x: x.t(), (70, 130), name="a transposed tile")(transposed(is_swizzled=False))
schedule(lambda x: x.t(), (64, 96), name="a transposed and swizzled tile")(transposed(is_swizzled=True))


@schedule(lambda x: x, (5, 1000))
def loads_by_tma(fd: FusionDefinition) -> None:
    x = tensor(fd)
    out = fd.ops.set(x)
    fd.add_output(out)
    copy = x.cache_after(LoadStoreOpType.tma)
    copy.set_memory_type(MemoryType.shared)
    for t in (copy, out):
        t.split(1, 128)
        bind(t, grid_x=0)
    bind(copy, tma=-1)
    bind(out, block_x=-1)


@schedule(lambda x: x, (50, 200))
def tiles_by_tma_both_ways(fd: FusionDefinition) -> None:
    x = tensor(fd)
    out = fd.ops.set(x)
    fd.add_output(out)
    load, store = x.cache_after(LoadStoreOpType.tma), out.cache_before(LoadStoreOpType.tma)
    for t in (load, store):
        t.set_memory_type(MemoryType.shared)
    out.split(1, 64)
    out.split(0, 16)
    out.reorder({1: 2})
    fd.sched.transform_like(out)
    bind(out, grid_x=0, grid_y=1)
    fd.sched.parallelize_like(out)
    for t in (load, out):
        t.axis(2).parallelize(P.tma)
        t.axis(3).parallelize(P.tma)
    bind(store, block_y=2, block_x=3)


def loaded_by_warps(kind: ParallelType) -> Callable[[FusionDefinition], None]:
    def build(fd: FusionDefinition) -> None:
        a, b = tensor(fd), tensor(fd)
        out = fd.ops.mul(a, b)
        fd.add_output(out)
        copies = [t.cache_after(LoadStoreOpType.tma) for t in (a, b)]
        for copy in copies:
            copy.set_memory_type(MemoryType.shared)
        out.split(-1, 256)
        fd.sched.transform_like(out)
        bind(out, grid_x=0)
        fd.sched.parallelize_like(out)
        for copy in copies:
            bind(copy, tma=-1)
        bind(out, block_x=-1)
        fd.sched.inline_most()
        for copy in copies:
            fd.sched.warp_specialize(copy, 3, 2, kind)

    return build


for binding in (P.block_x, P.block_y, P.block_z):
    schedule(lambda a, b: a * b, (5, 1000), (5, 1000), name=f"warps of {binding.name} that load")(loaded_by_warps(binding))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    build, shapes, reference = SCHEDULES[name]
    inputs = [torch.randn(shape, device=DEVICE) for shape in shapes]
    with FusionDefinition() as fd:
        build(fd)
    (out,) = fd.manual_execute(inputs)
    torch.testing.assert_close(out.double(), reference(*(x.double() for x in inputs)), atol=1e-4, rtol=1e-5)


def test_a_block_of_too_many_threads_is_an_error_of_the_call() -> None:
    with FusionDefinition() as fd:
        a_row_per_block(fd)
    with pytest.raises(RuntimeError, match="allows 1024"):
        fd.manual_execute([torch.zeros(2, 2000, device=DEVICE)])
    assert torch.equal(fd.manual_execute([torch.zeros(2, 1000, device=DEVICE)])[0], torch.zeros(2, device=DEVICE))
