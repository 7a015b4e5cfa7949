"""Groups that read the same data in loops of equal sizes over other axes: one kernel, with the numbers of torch; no kernel where sizes are not known to be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.reference.interpreter import evaluate


def kernels(build: Callable[[FusionDefinition], None], *inputs: Any) -> int:
    """Check a definition's results, which are overwritten with NaN between two calls, and return the number of its kernels."""
    with FusionDefinition() as fd:
        build(fd)
    wanted = evaluate(fd.fusion, list(inputs))
    for _ in range(2):
        for got, expected in zip(fd.execute(list(inputs)), wanted, strict=True):
            tolerance = 2e-2 if got.dtype is torch.bfloat16 else 1e-5
            torch.testing.assert_close(got.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)
            got.fill_(float("nan"))
    return len(fd.fec.kernel_runtimes)


def rotary(sizes: tuple[int, int, int, int], *, is_open: bool, values: str) -> tuple[Callable[[FusionDefinition], None], list[torch.Tensor]]:
    """Queries, keys and values out of one product of [batch, length, 3 * heads * elems], the first two with rotary positions."""
    batch, length, heads, elems = sizes

    def build(fd: FusionDefinition) -> None:
        o, kind = fd.ops, DataType.BFloat16
        product = fd.define_tensor([-1 if is_open else batch, -1 if is_open else length, 3 * heads * elems], contiguity=True, dtype=kind)
        angles = [fd.define_tensor([-1 if is_open else length, elems], contiguity=True, dtype=kind) for _ in range(2)]
        b, n = (product.size(0), product.size(1)) if is_open else (batch, length)
        turned = o.permute(o.reshape(product, [b, n, 3, heads, elems]), [2, 0, 3, 1, 4])
        parts = [o.squeeze(o.slice(turned, [place, 0, 0, 0, 0], [place + 1, b, heads, n, elems]), [0]) for place in range(3)]
        cos, sin = (o.broadcast_in_dim(o.cast(t, DataType.Float), [b, heads, n, elems], [2, 3]) for t in angles)
        for part in parts[:2]:
            x = o.cast(part, DataType.Float)
            low, high = o.slice(x, [0] * 4, [b, heads, n, elems // 2]), o.slice(x, [0, 0, 0, elems // 2], [b, heads, n, elems])
            fd.add_output(o.cast(o.add(o.mul(x, cos), o.mul(o.cat([o.neg(high), low], -1), sin)), kind))
        if values == "computed":
            fd.add_output(o.mul(parts[2], 0.5))
        elif values == "turned":
            fd.add_output(o.stride_order(o.mul(parts[2], 0.5), [0, 1, 2, 3]))

    inputs = [torch.randn(shape).bfloat16() for shape in ((batch, length, 3 * heads * elems), (length, elems), (length, elems))]
    return build, inputs


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("values", "count"), [("", 1), ("computed", 1), ("turned", 2)])
@pytest.mark.parametrize("sizes", [(2, 7, 3, 8), (1, 5, 2, 6), (3, 1, 1, 2)])
def test_rotary_positions_of_queries_and_keys(sizes: tuple[int, int, int, int], values: str, count: int, is_open: bool) -> None:
    build, inputs = rotary(sizes, is_open=is_open, values=values)
    found = kernels(build, *inputs)
    assert found == count or 1 in sizes  # where an axis has one element, more orders are the same, and an open size decides more


def test_sizes_that_are_equal_by_chance_are_not_tied() -> None:
    """Sizes of two inputs are equal in this call, and need not be in the next."""

    def build(sizes: list[int]) -> Callable[[FusionDefinition], None]:
        def define(fd: FusionDefinition) -> None:
            a, b = (fd.define_tensor(sizes, contiguity=True) for _ in range(2))
            w = fd.define_tensor([sizes[1]], contiguity=True)
            fd.add_output(fd.ops.mul(a, w))
            fd.add_output(fd.ops.exp(fd.ops.add(b, fd.ops.sin(w))))

        return define

    inputs = torch.randn(6, 9), torch.randn(6, 9), torch.randn(9)
    assert kernels(build([-1, -1]), *inputs) == 2
    assert kernels(build([6, 9]), *inputs) == 1
    with FusionDefinition() as fd:
        build([-1, -1])(fd)
    fd.execute(list(inputs))
    x = torch.randn(4, 9)
    assert torch.equal(fd.execute([inputs[0], x, inputs[2]])[0], inputs[0] * inputs[2])


def test_what_the_smaller_of_two_computes_again_is_kept() -> None:
    """Twice a number is computed with another kernel's result, and again in the smaller of two alike groups."""

    def build(fd: FusionDefinition) -> None:
        o = fd.ops
        number, other = (fd.define_tensor(sizes, contiguity=True) for sizes in ([1], [10]))
        a, b = (fd.define_tensor([6, 9], contiguity=True) for _ in range(2))
        w = fd.define_tensor([9], contiguity=True)
        twice = o.mul(number, 2.0)
        fd.add_output(o.mul(other, twice))
        fd.add_output(o.mul(o.mul(a, w), twice))
        fd.add_output(o.exp(o.sin(o.add(b, w))))

    assert kernels(build, torch.randn(1), torch.randn(10), torch.randn(6, 9), torch.randn(6, 9), torch.randn(9)) == 2


def test_two_axes_of_one_tensor_are_not_tied() -> None:
    """A group that has the other's axis already, as the second axis of a square, keeps its loops."""

    def build(fd: FusionDefinition) -> None:
        x, y = fd.define_tensor([5, 5], contiguity=True), fd.define_tensor([5], contiguity=True)
        turned = fd.ops.segment_set(fd.ops.add(fd.ops.permute(x, [1, 0]), x))
        fd.add_output(fd.ops.add(turned, y))
        fd.add_output(fd.ops.mul(fd.ops.permute(turned, [1, 0]), fd.ops.exp(y)))

    kernels(build, torch.randn(5, 5), torch.randn(5))


def test_what_needs_the_other_is_not_tied() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = fd.define_tensor([4, 6], contiguity=True), fd.define_tensor([6], contiguity=True)
        first = fd.ops.segment_set(fd.ops.mul(x, y))
        picked = fd.ops.take_along_axis(first, fd.define_tensor([4, 6], contiguity=True, dtype=DataType.Int), 0)
        fd.add_output(fd.ops.add(picked, y))
        fd.add_output(first)

    assert kernels(build, torch.randn(4, 6), torch.randn(6), torch.randint(0, 4, (4, 6))) == 2


@pytest.mark.parametrize("sizes", [(7, 33), (64, 40), (1, 5)], ids=str)
def test_a_value_per_row_is_computed_in_both(sizes: tuple[int, int]) -> None:
    """The gradients of a difference's two operands, of which each has its columns from nowhere else: a launch costs more than a few values."""

    def build(fd: FusionDefinition) -> None:
        o = fd.ops
        row = o.mul(o.neg(fd.define_tensor([sizes[0]], contiguity=True)), fd.define_tensor([sizes[0]], contiguity=[None if sizes[0] == 1 else False]))
        for value in (row, o.neg(row)):
            everywhere = o.broadcast_in_dim(o.full([sizes[1]], True, dtype=DataType.Bool), list(sizes), [1])
            fd.add_output(o.cast(o.where(everywhere, o.broadcast_in_dim(o.cast(value, DataType.BFloat16), list(sizes), [0]), 0.0), DataType.BFloat16))

    assert kernels(build, torch.randn(sizes[0]), torch.randn(2 * sizes[0])[::2]) == 1


def test_many_alike_are_several_kernels() -> None:
    """A kernel reads and writes a bounded number of tensors."""

    def build(fd: FusionDefinition) -> None:
        w = fd.define_tensor([7], contiguity=True)
        for n in range(20):
            fd.add_output(fd.ops.mul(fd.ops.add(fd.define_tensor([3, 7], contiguity=True), float(n)), w))

    assert 3 <= kernels(build, torch.randn(7), *[torch.randn(3, 7) for _ in range(20)]) <= 4


def losses(fd: FusionDefinition, rows: Any, weights: Any) -> None:
    """The mean of losses that an earlier kernel made, with the sums of their weights."""
    a, b = fd.ops.segment_set(fd.ops.exp(rows)), fd.ops.segment_set(fd.ops.sin(rows))
    is_counted = fd.ops.cast(fd.ops.segment_set(fd.ops.gt(rows, 0.0)), DataType.Float)
    fd.add_output(fd.ops.truediv(fd.ops.sum(fd.ops.mul(a, weights)), fd.ops.add(fd.ops.sum(b), fd.ops.max(is_counted))))


@pytest.mark.parametrize("count", [1, 7, 5000])
def test_sums_over_one_axis_that_no_tensor_of_theirs_ties(count: int) -> None:
    """Results of one kernel are folded by one other, though nothing that it computes has the loops of all."""

    def build(fd: FusionDefinition) -> None:
        losses(fd, fd.define_tensor([-1], contiguity=True), 2.0)

    assert kernels(build, torch.randn(count, generator=torch.Generator().manual_seed(count))) == 2  # the divisor may be near 0 else


@pytest.mark.parametrize("sizes", [(5, 9), (64, 33), (3, 2000)])
@pytest.mark.parametrize("dims", [[0], [1], [0, 1]])
def test_folds_of_matrices_that_no_tensor_of_theirs_ties(sizes: tuple[int, int], dims: list[int]) -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        a, b = fd.ops.segment_set(fd.ops.exp(x)), fd.ops.segment_set(fd.ops.sin(x))
        fd.add_output(fd.ops.add(fd.ops.sum(a, dims), fd.ops.max(b, dims)))
        fd.add_output(fd.ops.var(a, dims))

    assert kernels(build, torch.rand(sizes)) == 2


def test_orders_that_differ_are_not_tied() -> None:
    """Axes of the other reduction in another order: places say which axes are the same."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([6, 6], contiguity=True)
        a, b = fd.ops.segment_set(fd.ops.exp(x)), fd.ops.segment_set(fd.ops.permute(fd.ops.sin(x), [1, 0]))
        fd.add_output(fd.ops.add(fd.ops.sum(a), fd.ops.max(b)))

    assert kernels(build, torch.rand(6, 6)) >= 2


@pytest.mark.parametrize("rows", [37, 1, 0, 1030])
@pytest.mark.parametrize(("columns", "wide"), [(2, 1), (3, 1), (5, 2)])
def test_columns_that_another_kernel_adds_are_one_kernel(rows: int, columns: int, wide: int) -> None:
    """Nothing in the kernel of the columns says that their rows are the same: their sum does, which reads them from memory."""
    with FusionDefinition() as fd:
        o, x = fd.ops, fd.define_tensor([-1, columns * wide], contiguity=True)
        parts = [o.sin(o.slice(x, [0, wide * n], [x.size(0), wide * (n + 1)])) for n in range(columns)]
        total = o.segment_set(parts[0])
        for part in parts[1:]:
            total = o.add(o.mul(total, 0.5), o.segment_set(part))
        for out in (*parts, total):
            fd.add_output(out)
    given = torch.randn(rows, columns * wide)
    with poisoned_outputs():
        got = fd.execute([given])
    wanted = list(given.double().sin().split(wide, 1))
    total = wanted[0]
    for part in wanted[1:]:
        total = total * 0.5 + part
    for out, want in zip(got, (*wanted, total), strict=True):
        torch.testing.assert_close(out.double(), want, rtol=0, atol=1e-6)
    assert len(fd.fec.kernel_runtimes) == (2 if rows else 0)


def test_columns_in_another_order_of_axes_are_not_tied() -> None:
    """Two parts lie transposed to each other, and a sum in another kernel tells which axes of theirs are the same: the first is not the first."""

    def build(fd: FusionDefinition) -> None:
        o, x = fd.ops, fd.define_tensor([6, 6, 2], contiguity=True)
        a, b = (o.exp(o.squeeze(o.slice(x, [0, 0, n], [6, 6, n + 1]), [2])) for n in range(2))
        turned = o.permute(o.segment_set(b), [1, 0])
        for out in (a, b, o.add(o.segment_set(a), turned)):
            fd.add_output(out)

    kernels(build, torch.randn(6, 6, 2))
