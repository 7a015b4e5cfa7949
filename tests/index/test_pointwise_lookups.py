"""Lookups in pointwise kernels: slices, pads, gathers, selections and embeddings against torch, bit by bit, in the emulator with its checks."""

from __future__ import annotations

import pytest
import torch
from lookup_cases import kernel_text, numbers, places, run, window

from weft import DataType, FusionDefinition
from weft.emulator.report import KernelFault
from weft.expr import const
from weft.ir.graph_ops import Along
from weft.ops import build, lookups
from weft.reference.index_rules import PositionOutOfRange
from weft.reference.interpreter import evaluate

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entries, width, count", [(50, 64, 33), (7, 13, 1), (1, 1, 5), (9, 256, 0)])
def test_rows_are_selected(entries: int, width: int, count: int, dtype: torch.dtype) -> None:
    x, index = numbers(entries, width, dtype=dtype), places(entries, count)
    run(lambda fd, x, i: fd.ops.set(fd.ops.index_select(x, i, 0)), [x, index], x[index])


@pytest.mark.parametrize("index_type", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_one_axis_of_three_is_selected(dim: int, index_type: torch.dtype) -> None:
    x = numbers(6, 5, 8)
    index = places(x.shape[dim], 11, dtype=index_type)
    run(lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, dim)), [x, index], -x.index_select(dim, index))


def test_a_scalar_index_keeps_the_axis() -> None:
    x, index = numbers(6, 8), torch.tensor(4)
    run(lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 0)), [x, index], -x[4:5])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gather_with_a_smaller_index(dim: int) -> None:
    x, index = numbers(6, 5, 8), places(5, 4, 3, 7)
    run(lambda fd, x, i: fd.ops.add(fd.ops.gather(x, i, dim), 1.0), [x, index], x.gather(dim, index) + 1)


def test_a_gather_is_no_vector_of_its_source_along_an_axis_that_the_index_has() -> None:
    """Each neighbour has an index of its own, however wide and even the rows are."""
    x, index = numbers(512, 640), places(512, 50, 640)
    run(lambda fd, x, i: fd.ops.gather(x, i, 0), [x, index], x.gather(0, index))


@pytest.mark.parametrize("shape, index_shape, dim", [((4, 9), (4, 3), 1), ((4, 9), (1, 3), 1), ((1, 9), (4, 3), 1), ((4, 9), (4, 1), 1), ((6, 5), (2, 5), 0)])
def test_take_along_axis_broadcasts_the_other_axes(shape: tuple[int, int], index_shape: tuple[int, int], dim: int) -> None:
    x, index = numbers(*shape), places(shape[dim], *index_shape)

    def define(fd, x, i):  # noqa: ANN001, ANN202
        return fd.ops.neg(fd.ops.take_along_axis(x, i, dim))

    with FusionDefinition() as fd:
        a = fd.define_tensor(shape, contiguity=[None if n == 1 else True for n in shape], dtype=DataType.Float)
        b = fd.define_tensor(index_shape, contiguity=[None if n == 1 else True for n in index_shape], dtype=DataType.Int)
        fd.add_output(define(fd, a, b))
    assert torch.equal(fd.execute([x, index])[0], -torch.take_along_dim(x, index, dim))
    fd.validate([x, index])


@pytest.mark.parametrize("index", [0, 3, -1, -6])
@pytest.mark.parametrize("dim", [0, 1])
def test_select_counts_from_the_end(index: int, dim: int) -> None:
    x = numbers(6, 6, 8)
    run(lambda fd, x: fd.ops.neg(fd.ops.select(x, index, dim)), [x], -x.select(dim, index))


def test_select_at_a_scalar_of_the_call() -> None:
    x = numbers(6, 8)
    with FusionDefinition() as fd:
        a, i = fd.define_tensor([-1, -1], contiguity=[True, True]), fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.neg(fd.ops.select(a, i, 0)))
    for place in (2, -2):
        assert torch.equal(fd.execute([x, place])[0], -x[place])


@pytest.mark.parametrize("width", [64, 24, 7])
def test_embedding_of_two_axes(width: int) -> None:
    table, index = numbers(40, width, dtype=torch.bfloat16), places(40, 5, 6)
    run(lambda fd, i, w: fd.ops.embedding_fwd(i, w), [index, table], table[index])


@pytest.mark.parametrize("low, size, width", [(0, 8, 24), (8, 8, 24), (16, 8, 24), (3, 9, 17), (5, 0, 8), (8, 64, 128), (4, 64, 128)])
def test_columns_are_sliced(low: int, size: int, width: int) -> None:
    x = numbers(9, width, dtype=torch.float16)
    run(lambda fd, x: fd.ops.set(window(fd, x, [0, low], [None, size])), [x], x[:, low : low + size])


@pytest.mark.parametrize("low, size", [((2, 8), (5, 16)), ((1, 0), (3, 32)), ((0, 4), (9, 9))])
def test_rows_and_columns_are_sliced(low: tuple[int, int], size: tuple[int, int]) -> None:
    x = numbers(9, 32)
    run(lambda fd, x: fd.ops.neg(window(fd, x, low, size)), [x], -x[low[0] : low[0] + size[0], low[1] : low[1] + size[1]])


@pytest.mark.parametrize("left, right, width", [(8, 8, 32), (3, 2, 32), (-4, 4, 32), (-3, -3, 17), (5, 0, 1), (0, 40, 8), (4, 4, 0)])
def test_columns_are_padded(left: int, right: int, width: int) -> None:
    x = numbers(5, width)
    wanted = torch.nn.functional.pad(x, (left, right), value=-2.5)
    run(lambda fd, x: fd.ops.set(window(fd, x, [0, -left], [None, wanted.shape[1]], fill=-2.5)), [x], wanted)


def test_all_axes_are_padded() -> None:
    x = numbers(3, 4, 8)
    wanted = torch.nn.functional.pad(x, (8, 0, 1, 2, -1, 3), value=7.0)
    run(lambda fd, x: fd.ops.set(window(fd, x, [1, -1, -8], list(wanted.shape), fill=7.0)), [x], wanted)


@pytest.mark.parametrize("strides", [(40, 1), (64, 1), (1, 32), (33, 1)])
def test_strided_and_misaligned_sources(strides: tuple[int, int]) -> None:
    for offset in (0, 1, 4):
        storage = numbers(5000)
        x = torch.as_strided(storage, (32, 32), strides, offset)
        run(lambda fd, x: fd.ops.neg(window(fd, x, [0, 16], [None, 16])), [x], -x[:, 16:])
        index = places(32, 9)
        run(lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 0)), [x, index], -x[index])


def test_one_input_is_read_in_place_and_at_other_positions() -> None:
    x = numbers(8, 32)
    run(lambda fd, x: fd.ops.add(x, window(fd, x, [-1, 0], [None, None], fill=0.0)), [x], x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:-1])


def test_a_tensor_and_its_transpose_meet() -> None:
    """A lookup's source has no loops, so the two axes of one tensor need not be the same loop."""
    x = numbers(16, 16)

    def define(fd, x):  # noqa: ANN001, ANN202
        axes = [fd.fusion.copy_axis(a) for a in build.logical_axes(x)]
        return fd.ops.add(x, lookups.add_lookup(fd.fusion, "slice", x, axes, [Along(1), Along(0, const(0))]))

    run(define, [x], x + x.t())


def test_a_tensor_of_positions_indexes_itself() -> None:
    x = places(20, 20)
    run(lambda fd, x: fd.ops.add(fd.ops.gather(x, x, 0), x), [x], x[x] + x)


def test_positions_are_computed() -> None:
    x, index = numbers(10, 8), places(9, 12)
    run(lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, fd.ops.add(i, 1), 0)), [x, index], -x[index + 1])


def test_the_result_is_broadcast() -> None:
    x, y = numbers(10, 8), numbers(12, 8)
    run(lambda fd, x, y: fd.ops.mul(fd.ops.broadcast(fd.ops.select(x, 3, 0), [True, False]), y), [x, y], x[3] * y)


@pytest.mark.parametrize("position", [-1, 10, 1 << 40, -(1 << 40)])
def test_a_position_out_of_range_is_an_error_in_the_emulator(position: int) -> None:
    x, index = numbers(10, 8), torch.tensor([3, position, 2])
    with FusionDefinition() as fd:
        a, i = fd.define_tensor([-1, -1], contiguity=[True, True]), fd.define_tensor([-1], dtype=DataType.Int)
        fd.add_output(fd.ops.neg(fd.ops.index_select(a, i, 0)))
    with pytest.raises(KernelFault, match="position-out-of-range"):
        fd.execute([x, index])
    with pytest.raises(PositionOutOfRange):
        evaluate(fd.fusion, [x, index])


@pytest.mark.parametrize("low, size, width, is_vector", [(8, 64, 128, True), (64, 64, 128, True), (2, 64, 128, False), (0, 62, 128, False), (8, 64, 127, False)])
def test_slices_are_vectors_where_offset_and_sizes_allow(low: int, size: int, width: int, is_vector: bool) -> None:
    x = numbers(2048, width, dtype=torch.bfloat16)
    fd = run(lambda fd, x: fd.ops.neg(window(fd, x, [0, low], [None, size])), [x], -x[:, low : low + size])
    assert ("load_global_vector<4" in kernel_text(fd, x)) is is_vector


def test_embedding_rows_are_vectors() -> None:
    table, index = numbers(100, 64, dtype=torch.bfloat16), places(100, 2048)
    fd = run(lambda fd, i, w: fd.ops.neg(fd.ops.embedding_fwd(i, w)), [index, table], -table[index])
    assert "load_global_vector<4" in kernel_text(fd, index, table)


def test_index_ops_are_written_as_python_that_rebuilds_them() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Float)
        i, j = fd.define_tensor([-1], dtype=DataType.Int), fd.define_tensor([-1, -1], dtype=DataType.Int)
        for t in (fd.ops.index_select(x, i, 0), fd.ops.gather(x, j, 1), fd.ops.take_along_axis(x, j, 0), fd.ops.select(x, 1, 0), fd.ops.embedding_fwd(i, x)):
            fd.add_output(t)
    names: dict[str, object] = {}
    exec("from weft import *\n" + repr(fd), names)  # noqa: S102
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)  # type: ignore[operator]
    assert again.fusion == fd.fusion
