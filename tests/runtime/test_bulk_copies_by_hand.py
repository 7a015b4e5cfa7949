"""Copies by TMA scheduled by hand the way nvFuser's programs do: threads that count copies, tiles split twice, swizzles as transforms; loads and stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from weft import FusionDefinition, LoadStoreOpType, MemoryType, ParallelType, TensorView

P = ParallelType
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES: dict[str, Callable[[FusionDefinition, TensorView, TensorView, TensorView], None]] = {}


def load(schedule: Callable[..., None]) -> Callable[..., None]:
    """A copy through shared memory whose load is TMA's; schedule(fd, out, copy in shared memory, reader)."""

    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=[True, True])
        out = fd.ops.set(x)
        fd.add_output(out)
        copy = x.cache_after(LoadStoreOpType.tma)
        copy.set_memory_type(MemoryType.shared)
        schedule(fd, out, copy, out)

    CASES[schedule.__name__] = define
    return schedule


def store(schedule: Callable[..., None]) -> Callable[..., None]:
    """A copy through shared memory whose store is TMA's."""

    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=[True, True])
        out = fd.ops.set(x)
        fd.add_output(out)
        copy = out.cache_before(LoadStoreOpType.tma)
        copy.set_memory_type(MemoryType.shared)
        schedule(fd, out, out, copy)

    CASES[schedule.__name__] = define
    return schedule


def in_tiles(fd: FusionDefinition, out: TensorView, rows: int, columns: int) -> None:
    """[blocks.x, blocks.y, rows, columns], for all tensors."""
    out.split(0, rows)
    out.split(-1, columns)
    out.reorder({1: 2, 2: 1})
    fd.sched.transform_like(out)
    out.axis(0).parallelize(P.grid_x)
    out.axis(1).parallelize(P.grid_y)
    fd.sched.parallelize_like(out)


def bind(tensor: TensorView, **kinds: ParallelType) -> None:
    for place, kind in kinds.items():
        tensor.axis(int(place[1:])).parallelize(kind)


@load
def a_thread_for_each_row_of_a_block(fd, out, bulk, other):
    for tensor in (bulk, other):
        tensor.split(0, 4)
    bind(bulk, a0=P.grid_x, a1=P.block_x, a2=P.tma)
    bind(other, a0=P.grid_x, a1=P.block_y)


@load
def two_thread_axes_count_pieces_of_rows(fd, out, bulk, other):
    for tensor in (bulk, other):
        tensor.split(0, 4)
        tensor.split(-1, 64)
    bind(bulk, a0=P.grid_x, a1=P.block_y, a2=P.block_x, a3=P.tma)
    bind(other, a0=P.grid_x, a1=P.block_y, a3=P.block_x)


@store
def threads_store_a_row_each(fd, out, bulk, other):
    for tensor in (bulk, other):
        tensor.split(0, 4)
        tensor.split(-1, 64)
    bind(bulk, a0=P.grid_x, a1=P.block_y, a3=P.tma)
    bind(other, a0=P.grid_x, a1=P.block_y, a3=P.block_x)


@load
def a_tile_whose_rows_lie_in_two_pieces(fd, out, bulk, other):
    out.split(-1, 64)
    out.split(-1, 32)
    out.split(0, 16)
    out.reorder({1: 3, 2: 1, 3: 2})
    fd.sched.transform_like(out)
    bind(out, a0=P.grid_x, a1=P.grid_y)
    fd.sched.parallelize_like(out)
    bind(bulk, a2=P.tma, a3=P.tma, a4=P.tma)
    bind(other, a3=P.block_y, a4=P.block_x)


@load
def a_tile_over_merged_axes(fd, out, bulk, other):
    out.merge(0, 1)
    out.split(0, 256)
    fd.sched.transform_like(out)
    bind(out, a0=P.grid_x)
    fd.sched.parallelize_like(out)
    bind(bulk, a1=P.tma)
    bind(other, a1=P.block_x)


@load
def a_swizzle_of_eight_rows(fd, out, bulk, other):
    in_tiles(fd, out, 8, 32)
    bulk.split(3, 4)
    bulk.swizzle(2, 3)
    bulk.set_allocation_domain(bulk.get_loop_domain(), True)
    bind(bulk, a2=P.tma, a3=P.tma, a4=P.tma)
    bind(other, a2=P.block_y, a3=P.block_x)


@load
def a_swizzle_of_rows_in_eights(fd, out, bulk, other):
    in_tiles(fd, out, 16, 32)
    bulk.split(2, 8)
    bulk.split(-1, 4)
    bulk.swizzle(3, 4)
    bulk.set_allocation_domain(bulk.get_loop_domain(), True)
    bind(bulk, a2=P.tma, a3=P.tma, a4=P.tma, a5=P.tma)
    bind(other, a2=P.block_y, a3=P.block_x)


@store
def a_swizzled_tile_is_stored(fd, out, bulk, other):
    in_tiles(fd, out, 16, 32)
    other.split(2, 8)
    other.split(-1, 4)
    other.swizzle(3, 4)
    other.set_allocation_domain(other.get_loop_domain(), True)
    bind(other, a3=P.block_y, a4=P.block_x)
    bind(bulk, a2=P.tma, a3=P.tma)


@pytest.mark.parametrize("name", CASES)
def test_copy(name: str) -> None:
    with FusionDefinition() as fd:
        CASES[name](fd)
    x = torch.randn(64, 256, device=DEVICE)
    (out,) = fd.manual_execute([x])
    assert torch.equal(out, x)
    text = fd.fusion.print_kernel()
    assert "weft::bulk_" in text or "map_T" in text
    assert "set" in repr(fd) or "cast" in repr(fd)  # the definition is still shown, whatever its schedule did to allocation domains


@pytest.mark.parametrize("name", [name for name in CASES if "swizzle" in name])
def test_a_swizzle_written_as_transforms_is_the_copy_s(name: str) -> None:
    with FusionDefinition() as fd:
        CASES[name](fd)
    text = fd.fusion.print_kernel()
    assert " ^ " in text or "bitwise_xor" in text, text


def merged_rows(fd: FusionDefinition, x: TensorView, kind: str) -> TensorView:
    """All axes but the last are merged and cut into eights; tiles have 32 columns."""
    out = fd.ops.set(x)
    fd.add_output(out)
    copy = x.cache_after(LoadStoreOpType.tma) if kind == "load" else out.cache_before(LoadStoreOpType.tma)
    copy.set_memory_type(MemoryType.shared)
    for _ in range(x.ndim - 2):
        out.merge(0, 1)
    in_tiles(fd, out, 8, 32)
    bulk, other = (copy, out) if kind == "load" else (out, copy)
    bind(bulk, a2=P.tma, a3=P.tma)
    bind(other, a2=P.block_y, a3=P.block_x)
    return out


@pytest.mark.parametrize("is_static", [False, True], ids=["open sizes", "static sizes"])
@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize("shape", [(3, 5, 36), (1, 7, 64), (2, 3, 5, 40), (4, 16, 64)], ids=str)
def test_tiles_run_over_rows_of_several_merged_axes(shape: tuple[int, ...], kind: str, is_static: bool) -> None:
    """Axes that lie one behind the other are one dimension of the tensor map."""
    x = torch.randn(shape, device=DEVICE)
    with FusionDefinition() as fd:
        sizes = shape if is_static else [-1 if n > 1 else 1 for n in shape]
        merged_rows(fd, fd.define_tensor(list(sizes), contiguity=True), kind)
    (out,) = fd.manual_execute([x])
    assert torch.equal(out, x)


def test_rows_with_gaps_between_matrices_are_no_dimension() -> None:
    x = torch.randn(3, 6, 32, device=DEVICE)[:, :5]
    with FusionDefinition() as fd:
        merged_rows(fd, fd.define_tensor([-1, -1, -1], contiguity=[False, True, True]), "load")
    with pytest.raises(RuntimeError, match="does not run over neighbours"):
        fd.manual_execute([x])
