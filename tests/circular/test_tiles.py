"""Tiles by tensor maps: 1 to 5 dimensions, parts that lie outside, strides, swizzles; alone, in rings, and loaded by async warps. Races are checked."""

from __future__ import annotations

import pytest
import torch
from scheduled import L, P, compiles, program, run

from weft import DataType, FusionDefinition, MemoryType
from weft.lower.tiles import BadTile
from weft.schedule.circular import BadSwizzleBytes, Pipelined, WarpSpecialized, circular_buffer, swizzle_tile
from weft.schedule.inline import inline_to


def tiled(rank: int, box: tuple[int, ...], *, store: bool = False, stages: int = 1, kind=None, swizzle: int = 0, threads: int = 32, dtype=DataType.Float, contiguity=True):  # noqa: ANN001, ANN201
    """x + x with tiles of `box` (of the innermost axes), all tiles of a block in turn."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=contiguity, dtype=dtype)
        y = fd.ops.add(x, x)
        if dtype is not DataType.Float:
            y = fd.ops.cast(y, dtype=dtype)
        fd.add_output(y)
        xs = x.cache_after(L.tma)
        xs.set_memory_type(MemoryType.shared)
        ys = y.cache_before(L.tma) if store else None
        if ys is not None:
            ys.set_memory_type(MemoryType.shared)
        if swizzle:
            swizzle_tile(xs, swizzle)
            if ys is not None:
                swizzle_tile(ys, swizzle)
        tensors = [t for t in fd.fusion.tensors() if t is not x]
        n = len(box)
        for t in tensors:
            for k, extent in enumerate(box):
                t.split(rank - n + 2 * k, extent)
            outer = [*range(rank - n), *(rank - n + 2 * k for k in range(n))]
            t.reorder({old: new for new, old in enumerate(outer)})
            for _ in range(rank - 1):
                t.merge(0, 1)
            t.split(0, 2)
            t.axis(1).parallelize(P.grid_x)  # [steps, BIDx, tile...]
            if t is xs or t is y and store:
                for k in range(n):
                    t.axis(2 + k).parallelize(P.tma)
            else:
                for _ in range(n - 1):
                    t.merge(2, 3)
                t.split(2, threads)
                t.axis(3).parallelize(P.block_x)
        inline_to(fd.fusion, {t: 2 if t is xs or t is ys else 9 for t in fd.fusion.tensors()})  # type: ignore[arg-type]
        if stages > 1:
            circular_buffer(xs, stages, stages - 1, kind or Pipelined())
    return fd


def swizzled(swizzle: int, dtype: DataType, store: bool) -> FusionDefinition:
    """Two stages of tiles whose rows fill the swizzle."""
    return tiled(2, (max(16, 1024 // swizzle), swizzle * 8 // dtype.bits), store=store, swizzle=swizzle, dtype=dtype, stages=2)


def ring(stages: int) -> FusionDefinition:
    return tiled(2, (8, 16), stages=stages, store=True)


def by_async_warp(swizzle: int) -> FusionDefinition:
    """Three stages of tiles that a warp of its own loads."""
    return tiled(2, (16, 32 if swizzle else 16), stages=3, kind=WarpSpecialized(P.block_x), swizzle=swizzle, store=True, threads=128)


def check(fd, x: torch.Tensor) -> None:  # noqa: ANN001
    (out,) = run(fd, [x])
    torch.testing.assert_close(out, x + x)


# A block whose first tile is cut would store what nobody wrote, to nowhere; the emulator minds. So tiles that are stored are cut at the outermost axis only.
SHAPES = {2: (37, 52), 3: (3, 21, 36), 4: (2, 3, 9, 20), 5: (2, 2, 3, 5, 12)}
STORED = {2: (37, 64), 3: (3, 21, 32), 4: (2, 9, 8, 16), 5: (3, 4, 9, 4, 8)}
BOXES = {2: (8, 16), 3: (4, 16), 4: (2, 4, 8), 5: (2, 1, 4, 4)}


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("rank", BOXES)
def test_tiles_of_every_rank_with_parts_outside(rank: int, store: bool) -> None:
    fd = tiled(rank, BOXES[rank], store=store)
    assert f"tensor_load<{rank}>" in program(fd).text
    check(fd, torch.randn((STORED if store else SHAPES)[rank]))
    compiles(fd)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16], ids=["float", "bf16"])
def test_swizzles(swizzle: int, store: bool, dtype: DataType) -> None:
    fd = swizzled(swizzle, dtype, store)
    x = torch.randn(133, 4 * swizzle)
    check(fd, x if dtype is DataType.Float else x.bfloat16())
    compiles(fd)


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_rings_of_tiles(stages: int) -> None:
    check(ring(stages), torch.randn(16 * (2 * stages + 1) - 3, 48))


@pytest.mark.parametrize("swizzle", [0, 128])
def test_tiles_loaded_by_an_async_warp(swizzle: int) -> None:
    fd = by_async_warp(swizzle)
    check(fd, torch.randn(32 * 7 - 5, 64))
    compiles(fd)


def test_rows_may_be_strided() -> None:
    fd = tiled(2, (8, 16), contiguity=[False, True])
    check(fd, torch.randn(37, 64)[:, :52])


def test_a_kernel_serves_other_sizes_with_maps_of_their_own() -> None:
    fd = tiled(2, (8, 16), store=True)
    for shape in ((16, 16), (37, 64), (100, 32)):
        check(fd, torch.randn(shape))


def test_what_maps_do_not_take() -> None:
    with pytest.raises(BadTile, match="512 elements along .*; one copy takes at most 256"):
        program(tiled(2, (2, 512)))
    with pytest.raises(BadTile, match="a row of the tile has 8 bytes, which is not a multiple of 16"):
        program(tiled(2, (8, 2), threads=16))
    with pytest.raises(BadTile, match="consecutive tiles of 64 bytes in shared memory must each begin at a multiple of 128"):
        program(tiled(2, (4, 4), threads=16, stages=2))
    with pytest.raises(BadTile, match="a row of the tile has 64 bytes, but the swizzle has 128"):
        program(tiled(2, (16, 16), swizzle=128))
    with pytest.raises(BadTile, match="6 axes; a tensor map has up to 5"):
        program(tiled(6, (4, 4)))
    with pytest.raises(BadSwizzleBytes, match="by 48 bytes"):
        tiled(2, (8, 16), swizzle=48)
