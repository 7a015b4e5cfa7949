"""What a scheduler accepts it can schedule: fusions that one accepted and failed on. The kernel is compared with torch in float64."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.analysis.loop_axes import Obstacle
from weft.options import options
from weft.schedulers.persistent_analysis import analyze_persistent
from weft.schedulers.row_passes import loops_stay_joined


def _run(fd: FusionDefinition, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    with options(strict_schedules=True, check="races"):
        return fd.execute(inputs)


@pytest.mark.parametrize("width", [2, 34])
def test_a_copy_of_an_output_in_another_order_is_not_stored_in_vectors(width):
    """The output that it copies is stored in vectors; the copy has a name of its own."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, width], contiguity=[True, True], dtype=DataType.Float)
        mean = fd.ops.broadcast(fd.ops.mean(x, dims=[1]), is_broadcast_dim=[False, True])
        y = fd.ops.sub(x, mean)
        fd.add_output(y)
        fd.add_output(fd.ops.stride_order(y, stride_order=[0, 1]))
    given = torch.randn(8, width)
    rows, columns = _run(fd, [given])
    want = given.double() - given.double().mean(1, keepdim=True)
    assert columns.stride() == (1, 8)
    for got in (rows, columns):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6)


def _flipped_beside_columns(rows: int, width: int) -> FusionDefinition:
    """x in reverse, from which the sum of its row is taken times what a maximum along the row of y leaves; y lies column by column."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[rows, width], contiguity=[True, True], dtype=DataType.Float)
        y = fd.define_tensor(shape=[rows, width], contiguity=[True, True], dtype=DataType.Float, stride_order=[0, 1])
        places = fd.ops.broadcast(fd.ops.iota(width, width - 1, -1, dtype=DataType.Int), is_broadcast_dim=[True, False])
        flipped = fd.ops.take_along_axis(x, places, 1)
        total = fd.ops.broadcast(fd.ops.sum(flipped, dims=[1]), is_broadcast_dim=[False, True])
        most = fd.ops.broadcast(fd.ops.max(y, dims=[1]), is_broadcast_dim=[False, True])
        fd.add_output(fd.ops.stride_order(fd.ops.add(fd.ops.mul(total, fd.ops.sub(y, most)), flipped), stride_order=[0, 1]))
    return fd


def test_reductions_that_only_computed_positions_join_are_not_read_again():
    """Each pass would compute the positions itself; then nothing tells that both reductions run over one axis."""
    fd = _flipped_beside_columns(3, 5)
    x, y = torch.randn(3, 5), torch.randn(5, 3).t()
    (got,) = _run(fd, [x, y])
    wide = y.double()
    want = x.double().sum(1, keepdim=True) * (wide - wide.amax(1, keepdim=True)) + x.double().flip(1)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)


def test_a_gradient_of_classes_by_position_beside_a_softmax_of_columns():
    """The sum over classes of what positions alone choose, as the gradient of a loss of images has it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[2, 3, 5], contiguity=[True] * 3, dtype=DataType.Float)
        target = fd.define_tensor(shape=[2, 5], contiguity=[True] * 2, dtype=DataType.Int)
        place = fd.ops.broadcast(fd.ops.iota(3, 0, 1, dtype=DataType.Int), is_broadcast_dim=[True, False, True])
        chosen = fd.ops.where(fd.ops.eq(place, fd.ops.broadcast(target, is_broadcast_dim=[False, True, False])), -1.0, 0.0)
        powers = fd.ops.exp(fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, dims=[1]), is_broadcast_dim=[False, True, False])))
        parts = fd.ops.truediv(powers, fd.ops.broadcast(fd.ops.sum(powers, dims=[1]), is_broadcast_dim=[False, True, False]))
        total = fd.ops.broadcast(fd.ops.sum(chosen, dims=[1]), is_broadcast_dim=[False, True, False])
        fd.add_output(fd.ops.sub(chosen, fd.ops.mul(parts, total)))
    given, classes = torch.randn(2, 3, 5), torch.randint(0, 3, (2, 5))
    (got,) = _run(fd, [given, classes])
    want = given.double().softmax(1) - torch.nn.functional.one_hot(classes, 3).movedim(-1, 1)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [3, 70])
def test_a_sum_of_what_positions_alone_choose_beside_a_softmax(width):
    """The first pass and the last compute the positions, each for itself, and nothing in memory joins their loops. The gradient of a loss of one row has it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[1, width], contiguity=[None, True], dtype=DataType.Float)
        row = fd.ops.squeeze(x, dims=[0])
        chosen = fd.ops.cast(fd.ops.eq(fd.ops.iota(width, 0, 1, dtype=DataType.Int), 2), DataType.Float)
        below = fd.ops.sub(row, fd.ops.broadcast(fd.ops.max(row, dims=[0]), is_broadcast_dim=[True]))
        sizes = fd.ops.broadcast(fd.ops.sum(fd.ops.exp(below), dims=[0]), is_broadcast_dim=[True])
        parts = fd.ops.exp(fd.ops.sub(below, fd.ops.log(sizes)))
        total = fd.ops.broadcast(fd.ops.sum(chosen, dims=[0]), is_broadcast_dim=[True])
        fd.add_output(fd.ops.sub(chosen, fd.ops.mul(parts, total)))
    given = torch.randn(1, width)
    (got,) = _run(fd, [given])
    want = torch.nn.functional.one_hot(torch.tensor(2), width) - given[0].double().softmax(0)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6)
    assert len(fd.fec.kernel_runtimes) == 1


def test_rows_that_a_tensor_of_positions_finds_can_be_looked_up_again():
    """The positions are an input, which all passes share."""
    with FusionDefinition() as fd:
        table = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        places = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Int)
        found = fd.ops.index_select(table, places, 0)
        fd.add_output(fd.ops.sub(found, fd.ops.broadcast(fd.ops.mean(found, dims=[1]), is_broadcast_dim=[False, True])))
    analysis = analyze_persistent(fd.fusion)
    assert not isinstance(analysis, Obstacle)
    assert loops_stay_joined(fd.fusion, analysis)


@pytest.mark.parametrize(("shape", "dim"), [([34, 1, 5], 2), ([34, 5, 1], 1), ([1, 34, 5], 2)])
def test_column_sums_of_which_some_keep_an_axis_of_one_element(shape, dim):
    """As gradients of a mean along the rows of three axes have it."""
    with FusionDefinition() as fd:
        x, g = (fd.define_tensor(shape=shape, contiguity=[None if n == 1 else True for n in shape], dtype=DataType.Float) for _ in range(2))
        product = fd.ops.mul(x, g)
        rows = fd.ops.broadcast(fd.ops.sum(product, dims=[dim]), is_broadcast_dim=[n == dim for n in range(3)])
        y = fd.ops.sub(x, fd.ops.mul(rows, g))
        first, single = shape.index(34), shape.index(1)
        fd.add_output(y)
        fd.add_output(fd.ops.sum(fd.ops.squeeze(y, dims=[single]), dims=[first - (single < first)]))
        fd.add_output(fd.ops.sum(product, dims=[first]))
    a, b = torch.randn(shape), torch.randn(shape)
    wide = a.double() * b.double()
    want = a.double() - wide.sum(dim, keepdim=True) * b.double()
    for got, exact in zip(_run(fd, [a, b]), (want, want.squeeze(single).sum(first - (single < first)), wide.sum(first))):
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


def test_what_gets_an_axis_beside_those_of_columns_is_computed_again():
    """A broadcast behind a column's sum that has all its rows: a later pass computes it again, as the whole columns that it is."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        y = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        mean = fd.ops.broadcast(fd.ops.mean(x, dims=[0]), is_broadcast_dim=[True, False])
        beside = fd.ops.broadcast(fd.ops.mul(fd.ops.sub(x, mean), y), is_broadcast_dim=[True, False, False])
        wide = fd.ops.truediv(fd.ops.expand(beside, shape=[2, -1, -1]), 2)
        first = fd.ops.squeeze(fd.ops.slice(wide, start_indices=[0, 0, 0], end_indices=[1, x.size(0), x.size(1)]), dims=[0])
        second = fd.ops.squeeze(fd.ops.slice(wide, start_indices=[1, 0, 0], end_indices=[2, x.size(0), x.size(1)]), dims=[0])
        total = fd.ops.broadcast(fd.ops.sum(second, dims=[0]), is_broadcast_dim=[True, False])
        fd.add_output(fd.ops.sub(first, total))
    given, other = torch.randn(3, 6), torch.randn(3, 6)
    (got,) = _run(fd, [given, other])
    wide_given = given.double()
    half = (wide_given - wide_given.mean(0, keepdim=True)) * other.double() / 2
    torch.testing.assert_close(got.double(), half - half.sum(0, keepdim=True), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 4), (33, 65)])
def test_rows_and_columns_beside_an_input_of_one_element(shape):
    """A scale or a slope of one element has none of the loops over rows: nothing of it can be unrolled with them."""
    with FusionDefinition() as fd:
        scale = fd.define_tensor(shape=[1], contiguity=[None], dtype=DataType.Float)
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        e = fd.ops.exp(fd.ops.mul(x, fd.ops.squeeze(scale, dims=[0])))
        y = fd.ops.sub(x, fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True)))
        fd.add_output(y)
        fd.add_output(fd.ops.sum(y, dims=[0]))
    s, given = torch.randn(1), torch.randn(shape)
    rows, columns = _run(fd, [s, given])
    want = given.double() - (given.double() * s.double()).softmax(1)
    torch.testing.assert_close(rows.double(), want, rtol=0, atol=1e-6)
    torch.testing.assert_close(columns.double(), want.sum(0), rtol=0, atol=1e-5)
    assert fd.fec.kernel_runtimes[-1].scheduler == "inner_outer_persistent"


@pytest.mark.parametrize("rows", [65536, 70001, 3, 1])
def test_sums_of_different_tensors_over_all_blocks_that_meet(rows):
    """A mean of the rows that a mask keeps: numbers and mask are loaded in vectors of their own, and folded in loops of their own; blocks meet once for both."""
    x, mask = torch.randn(rows, 8), torch.rand(rows) > 0.5
    with FusionDefinition() as fd:
        given, kept = fd.from_pytorch(x), fd.from_pytorch(mask)
        seen = fd.ops.cast(kept, dtype=DataType.Float)
        of_rows = fd.ops.mul(fd.ops.sum(fd.ops.mul(given, given), dims=[1]), seen)
        fd.add_output(fd.ops.div(fd.ops.sum(of_rows), fd.ops.maximum(fd.ops.sum(seen), 1.0)))
    (got,) = _run(fd, [x, mask])
    want = (x.double().square().sum(1) * mask).sum() / mask.double().sum().clamp(min=1)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
