"""Operands that lack axes of what is reduced: a bias on any subset of axes, beside reductions along, across and on both sides of memory."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.ir.values import TensorView
from weft.options import options

TORCH = {DataType.Float: torch.float32, DataType.Half: torch.float16, DataType.BFloat16: torch.bfloat16}
SUBSETS = [axes for count in (1, 2) for axes in combinations(range(3), count)]
SIZES, EMPTY = [(5, 6, 70), (1, 1, 1), (9, 1, 33), (1, 64, 8)], [(3, 0, 4)]


def numbers(dtype: DataType, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(TORCH[dtype])


def check(fd: FusionDefinition, *inputs: torch.Tensor) -> None:
    """Compare with torch in float64; what a kernel does not write is NaN."""
    with poisoned_outputs():
        fd.validate(list(inputs))


def spread_bias(fd: FusionDefinition, axes: tuple[int, ...], dtype: DataType) -> TensorView:
    """A bias over `axes` of three: two ops on its own elements stand between its load and the broadcast."""
    bias = fd.ops.cast(fd.define_tensor([-1] * len(axes), contiguity=True, dtype=dtype), DataType.Float)
    return fd.ops.broadcast(fd.ops.abs(bias), [d not in axes for d in range(3)])


@pytest.mark.parametrize("dims", [[2], [1, 2], [0, 1, 2], [0], [0, 1], [0, 2]], ids=str)
@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_a_bias_on_some_axes_beside_a_reduction(axes: tuple[int, ...], dims: list[int]) -> None:
    """Sizes take turns in the two types, the other way round for each second set of axes; the first one is tried in both."""
    for dtype in (DataType.Float, DataType.Half):
        with FusionDefinition() as fd:
            x = fd.ops.cast(fd.define_tensor([-1, -1, -1], contiguity=True, dtype=dtype), DataType.Float)
            fold = fd.ops.sum if dtype is DataType.Float else fd.ops.max
            fd.add_output(fold(fd.ops.add(x, spread_bias(fd, axes, dtype)), dims))
        turn = (SUBSETS.index(axes) + (dtype is DataType.Half)) % 2
        for sizes in SIZES[:1] + SIZES[1:][turn::2] + EMPTY[: dtype is DataType.Float]:  # of nothing there is no largest element
            check(fd, numbers(dtype, *sizes), numbers(dtype, *(sizes[d] for d in axes)))


@pytest.mark.parametrize("dims", [[1, 2], [0, 1], [0, 2]], ids=str)
@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_a_bias_on_some_axes_of_a_normalization(axes: tuple[int, ...], dims: list[int]) -> None:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        y = fd.ops.add(x, spread_bias(fd, axes, DataType.BFloat16))
        var, mean = fd.ops.var_mean(y, dims, correction=0, keepdim=True)
        fd.add_output(fd.ops.mul(fd.ops.sub(y, mean), fd.ops.rsqrt(fd.ops.add(var, 0.5))))
    for sizes in [(5, 6, 70), (9, 1, 33), (3, 0, 4)]:
        check(fd, numbers(DataType.BFloat16, *sizes), numbers(DataType.BFloat16, *(sizes[d] for d in axes)))


def test_an_axis_in_the_middle_of_a_merged_row() -> None:
    """The bias has one of the three axes that are merged to a row, and the row is one element long where the schedule is chosen."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1, -1], contiguity=True)
        bias = fd.define_tensor([-1, 1], contiguity=[True, None])
        fd.add_output(fd.ops.max(fd.ops.addcmul(x, bias, x, 0.5), [1, 2, 3]))
    for sizes in [(1, 1, 1, 1), (3, 4, 5, 6), (2, 1, 7, 1), (65, 2, 3, 4)]:
        check(fd, numbers(DataType.Float, *sizes), numbers(DataType.Float, sizes[2], 1))


@pytest.mark.parametrize("dims", [[0], [1]], ids=str)
def test_a_bias_that_is_cast_before_it_is_broadcast(dims: list[int]) -> None:
    """Rows that do not lie behind one another, and operands that start one element after a multiple of 16 bytes."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[False, True])
        bias = fd.define_tensor([-1], contiguity=True, dtype=DataType.Half)
        fd.add_output(fd.ops.min(fd.ops.maximum(bias, x), dims, True))
    for rows, columns in [(1, 1), (30, 40), (7, 129), (1, 64), (64, 1)]:
        x_ = numbers(DataType.Float, rows, columns + 3)[:, 1 : columns + 1]
        check(fd, x_, numbers(DataType.Half, columns + 1)[1:])


@pytest.mark.parametrize("extent", [2, -1])
def test_a_bias_that_is_read_again_where_the_result_varies_over_its_axis(extent: int) -> None:
    """After the reduction over two merged axes the loops run over one of them: the second load of the bias has those loops, not the first ones."""
    with FusionDefinition() as fd:
        bias = fd.define_tensor([1, extent, 1, 1], contiguity=[None, True, None, None])
        x = fd.define_tensor([-1, -1, -1, -1], contiguity=True)
        total = fd.ops.sum(fd.ops.minimum(x, bias), [0, 1])
        fd.add_output(fd.ops.add(bias, total))
    for rows, columns in [(1, (1, 1)), (5, (3, 7)), (300, (1, 5)), (2, (8, 33))]:
        count = 2 if extent == 2 else 3
        check(fd, numbers(DataType.Float, 1, count, 1, 1), numbers(DataType.Float, rows, count, *columns))


@pytest.mark.parametrize("dims", [[0, 1], [1], [0]], ids=str)
def test_a_bias_whose_own_result_is_an_output_too(dims: list[int]) -> None:
    """The threads that keep the bias for the rows compute its own result, which lacks their axes."""
    with FusionDefinition() as fd:
        x, bias = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.neg(bias))
        fd.add_output(fd.ops.sum(fd.ops.div(bias, fd.ops.exp(x)), dims))
    for rows, columns in [(1, 2), (3, 7), (9, 128), (1, 1)]:
        check(fd, numbers(DataType.Float, rows, columns), numbers(DataType.Float, columns))


def test_a_weight_of_a_normalization_whose_own_result_is_an_output_too() -> None:
    with FusionDefinition() as fd:
        x, weight = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=[None, True])
        y = fd.ops.minimum(x, fd.ops.min(x, [0, 1], True))
        fd.add_output(fd.ops.abs(weight))
        fd.add_output(fd.ops.mul(y, weight))
    for rows, columns in [(1, 2), (3, 64), (5, 7)]:
        check(fd, numbers(DataType.Float, rows, columns), numbers(DataType.Float, columns).expand(1, columns))


def test_random_numbers_that_are_an_output_and_spread_over_an_axis() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        rows, middle, columns = (fd.ops.size(x, d) for d in range(3))
        number = fd.ops.uniform(0.0, 1.0, [rows, columns], rng_seed=7, rng_offset=8, dtype=DataType.Float)
        fd.add_output(
            fd.ops.maximum(fd.ops.broadcast_in_dim(number, [rows, middle, columns], [0, 2]), fd.ops.full([rows, middle, columns], 0.5, DataType.Float))
        )
        fd.add_output(number)
    for sizes in [(11, 3, 512), (1, 1, 4), (2, 3, 7)]:
        check(fd, numbers(DataType.Float, *sizes))


@pytest.mark.parametrize(
    ("kind", "dims"), [("reduced", [0]), *((kind, dims) for kind in ("reduced", "normalized", "variance") for dims in ([1], [0, 1]))], ids=str
)
def test_no_input_varies_over_rows_and_columns(kind: str, dims: list[int]) -> None:
    """An outer product, one input per row and one per column: of each element of the loops nothing is read."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[None, True])
        y = fd.define_tensor([-1, 1], contiguity=[True, None])
        product = fd.ops.mul(y, x)
        total = fd.ops.sum(product, dims, True)
        results = {"reduced": lambda: total, "normalized": lambda: fd.ops.sub(product, total), "variance": lambda: fd.ops.var(product, dims, 0)}
        fd.add_output(results[kind]())
    for rows, columns in [(1, 1), (3, 7), (65, 1), (1, 129), (300, 130), (0, 3)]:
        check(fd, numbers(DataType.Float, columns).expand(rows, columns), numbers(DataType.Float, rows, 1))


@pytest.mark.parametrize("bias_axis", [0, 1])
@pytest.mark.parametrize("dims", [[0, 1], [1]], ids=str)
def test_a_bias_is_broadcast_for_a_merged_row_and_for_an_output(dims: list[int], bias_axis: int) -> None:
    """Both broadcasts of the bias have the loops of the merged row, though only one of them is reduced."""
    with FusionDefinition() as fd:
        x, bias = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        spread = [fd.ops.broadcast(bias, [axis != bias_axis for axis in range(2)]) for _ in range(2)]
        fd.add_output(fd.ops.minimum(spread[0], x))
        fd.add_output(fd.ops.max(fd.ops.maximum(spread[1], x), dims))
    for rows, columns in [(1, 1), (3, 5), (64, 8), (7, 1030), (1, 129), (300, 1)]:
        sizes = (rows, columns)
        check(fd, numbers(DataType.Float, *sizes), numbers(DataType.Float, sizes[bias_axis]))


@pytest.mark.parametrize("extents", [1, 2], ids=["a weight per column", "weights on both axes of a row"])
def test_the_result_of_a_reduction_times_a_weight(extents: int) -> None:
    """The product varies over rows as the sums do, and along them as the weight does: no tensor beside it is known to have both kinds of axes."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * (1 + extents), contiguity=True)
        weights = [fd.define_tensor([-1] + [1] * (extents - n - 1), contiguity=True) for n in range(extents)]
        scaled, table = x, fd.ops.abs(weights[0])
        for weight in weights:
            scaled = fd.ops.div(scaled, weight)
        for weight in weights[1:]:
            table = fd.ops.add(table, weight)
        fd.add_output(scaled)
        fd.add_output(fd.ops.mul(fd.ops.sum(x, list(range(1, 1 + extents)), True), table))
    for sizes in [(1, 1, 1), (3, 5, 7), (40, 2, 64), (2, 33, 130)]:
        sizes = sizes[: 1 + extents]
        check(fd, numbers(DataType.Float, *sizes), *(numbers(DataType.Float, sizes[1 + n], *[1] * (extents - n - 1)).abs() + 0.5 for n in range(extents)))


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize("axes", [(0,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
def test_a_weight_before_a_reduction_and_after_it_over_some_axes_of_the_row(axes: tuple[int, ...], reads: int) -> None:
    """The product after the sums has some of the axes that are merged to a row. With the outer ones only, its loops are others, and it loads the weight itself."""
    with FusionDefinition() as fd:
        x, weight = fd.define_tensor([-1] * 4, contiguity=True), fd.define_tensor([-1] * len(axes), contiguity=True)
        spread = [fd.ops.broadcast(value, [d not in axes for d in range(4)]) for value in (fd.ops.abs(weight), *[weight] * reads)]
        total, late = fd.ops.sum(fd.ops.mul(x, spread[0]), [0, 2, 3], True), spread[1]
        for other in (spread[0], *spread[2:]):
            late = fd.ops.add(late, other)
        fd.add_output(fd.ops.mul(total, late))
    for sizes in [(5, 5, 2, 33), (1, 1, 1, 1), (3, 4, 5, 64), (40, 2, 3, 7)]:
        check(fd, numbers(DataType.Float, *sizes), numbers(DataType.Float, *(sizes[d] for d in axes)))


def test_an_operand_that_is_read_in_a_column_and_behind_it():
    """The cast of the operand of one row stands in front of the loop: in it, it would wait for the loop's own result. Random fusion 1904 of --narrow."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1, -1], contiguity=True, dtype=DataType.BFloat16)
        y = fd.define_tensor([-1, -1, 1, -1], contiguity=[True, True, None, True], dtype=DataType.BFloat16)
        wide, row = fd.ops.cast(x, DataType.Float), fd.ops.cast(y, DataType.Float)
        least = fd.ops.min(wide, [2], True)
        fd.add_output(fd.ops.cast(fd.ops.where(fd.ops.gt(least, 0), row, row), DataType.BFloat16))
        fd.add_output(fd.ops.maximum(row, wide))
    with options(strict_schedules=True):
        for a, b, c, d in ((1, 4, 2, 1), (1, 3, 70, 33), (2, 1, 5, 64)):
            check(fd, numbers(DataType.BFloat16, a, b, c, d), numbers(DataType.BFloat16, a, b, 1, d))


@pytest.mark.parametrize("sizes", [(4, 16, 16, 16), (3, 5, 12, 20), (64, 3, 32, 32)], ids=str)
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16], ids=str)
def test_one_value_per_map_of_channels_in_shared_memory(sizes: tuple[int, ...], dtype: DataType) -> None:
    """The gradient of a mean over the map behind a batch norm. A later pass read the value of a map in a vector, across threads and not aligned; and copies
    of it by cp.async were planned as vectors, and found to be single elements of two bytes."""
    with FusionDefinition() as fd:
        gradient = fd.ops.cast(fd.define_tensor(shape=sizes[:2], contiguity=True, dtype=dtype), DataType.Float)
        x = fd.ops.cast(fd.define_tensor(shape=sizes, contiguity=True, dtype=dtype), DataType.Float)
        spread = fd.ops.expand(fd.ops.broadcast(gradient, [False, False, True, True]), sizes)
        passed = fd.ops.where(fd.ops.le(x, 0.0), 0.0, spread)
        total, tilt = (fd.ops.sum(value, [0, 2, 3], True) for value in (passed, fd.ops.mul(passed, x)))
        fd.add_output(fd.ops.cast(fd.ops.sub(fd.ops.sub(passed, total), fd.ops.mul(x, tilt)), dtype))
        fd.add_output(total)
    with options(strict_schedules=True):
        check(fd, numbers(dtype, *sizes[:2]), numbers(dtype, *sizes))
