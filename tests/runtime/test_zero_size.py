"""Sizes with a zero among them: shapes and values as torch has them, no division by zero, no launch where there is nothing to do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from calls_on_cpu import assert_same, define, relu, tensor

from weft import DataType, FusionDefinition
from weft.errors import UserError
from weft.ops.monoids import MONOIDS
from weft.reference.torch_types import torch_dtype


def reduce(kind: str, dims: list[int], dtype: DataType = DataType.Float, keepdim: bool = False) -> FusionDefinition:
    return define(lambda fd: fd.add_output(getattr(fd.ops, kind)(tensor(fd, 2, dtype), dims, keepdim)))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_an_empty_output_launches_nothing(shape: tuple[int, int]) -> None:
    fd = relu()
    (out,) = fd.execute([torch.zeros(shape)])
    assert out.shape == shape and out.stride() == torch.empty(shape).stride()
    assert fd.fec.kernel_runtimes == () and fd.fec.is_compiled([torch.zeros(shape)]) and fd.fec.get_cuda_kernel([torch.zeros(shape)]) == ""


@pytest.mark.parametrize(("kind", "value"), [("sum", 0.0), ("prod", 1.0)])
def test_a_reduction_over_nothing_is_the_identity(kind: str, value: float) -> None:
    assert_same(reduce(kind, [1]).execute([torch.zeros(5, 0)]), [torch.full((5,), value)])


@pytest.mark.parametrize(("kind", "value"), [("prod", 1), ("sum", 0)])
def test_integers_have_their_own_identities(kind: str, value: int) -> None:
    assert_same(reduce(kind, [0], DataType.Int).execute([torch.zeros(0, 3, dtype=torch.int64)]), [torch.full((3,), value)])


@pytest.mark.parametrize("kind", ["max", "min"])
def test_an_extremum_of_nothing_is_an_error(kind: str) -> None:
    """As in torch, and only where a result needs it: a softmax of rows without elements has none."""
    with pytest.raises(UserError, match=f"(?s)W744: {kind}: the reduced axis .* of T0.* has no elements, and {kind} of no elements is undefined.*fix: make"):
        reduce(kind, [1]).execute([torch.zeros(5, 0)])
    assert_same(reduce(kind, [1]).execute([torch.zeros(0, 5)]), [torch.zeros(0)])
    softmax = define(lambda fd: fd.add_output(fd.ops.exp(tensor(fd, 2) - fd.ops.max(tensor(fd, 2), [1], True))))
    assert softmax.execute([torch.zeros(3, 0), torch.zeros(3, 0)])[0].shape == (3, 0)


def test_a_reduction_that_leaves_nothing_launches_nothing() -> None:
    fd = reduce("sum", [1])
    assert_same(fd.execute([torch.zeros(0, 5)]), [torch.zeros(0)])
    assert fd.fec.kernel_runtimes == ()


def test_what_follows_a_reduction_over_nothing_is_computed() -> None:
    def build(fd: FusionDefinition) -> None:
        total = fd.ops.sum(tensor(fd, 2), [1])
        fd.add_output(fd.ops.add(fd.ops.exp(total), tensor(fd, 1)))

    fd, y = define(build), torch.randn(5)
    assert_same(fd.execute([torch.zeros(5, 0), y]), [y + 1])
    x = torch.randn(5, 3)
    assert_same(fd.execute([x, y]), [x.sum(1).exp() + y])
    assert len(fd.fec.kernel_runtimes) == 2


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom")
@pytest.mark.parametrize("shape", [(5, 0), (0, 5)])
def test_variance_and_mean_of_nothing_are_no_numbers(shape: tuple[int, int]) -> None:
    def build(fd: FusionDefinition) -> None:
        for out in fd.ops.var_mean(tensor(fd, 2), [1], 1, False):
            fd.add_output(out)

    x = torch.zeros(shape)
    assert_same(define(build).execute([x]), [x.var(1), x.mean(1)])


def test_a_mean_by_division_through_a_zero_size() -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        fd.add_output(fd.ops.div(fd.ops.sum(x, [1]), fd.ops.cast(fd.ops.size(x, 1), DataType.Double)))

    assert_same(define(build).execute([torch.zeros(3, 0)]), [torch.full((3,), math.nan)])


EMPTY_ROWS = torch.ones(3).expand(0, 3)
"""No rows of three columns, without a stride between rows: a fold over the rows reads one row, and there is none in memory."""


def rows_without_stride(fd: FusionDefinition, dtype: DataType = DataType.Float) -> Any:
    return fd.define_tensor(shape=[-1, -1], contiguity=[None, True], dtype=dtype)


@pytest.mark.parametrize("dims", [[0], [0, 1]], ids=str)
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Int32, DataType.Half], ids=str)
@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_a_fold_over_an_expanded_axis_without_elements_reads_nothing(kind: str, dtype: DataType, dims: list[int]) -> None:
    def build(fd: FusionDefinition) -> None:
        x = rows_without_stride(fd, dtype)
        fd.add_output(fd.ops.add(getattr(fd.ops, kind)(fd.ops.neg(x), dims), 2))
        fd.add_output(fd.ops.neg(x))

    fd = define(build)
    for rows in (0, 2, 0):
        x = torch.ones(3).to(torch_dtype(dtype)).expand(rows, 3)
        fd.validate([x])
        folded, negated = fd.execute([x])
        if not rows:
            assert_same([folded.to(torch.float64)], [torch.full((3,) if dims == [0] else (), 2 if kind == "sum" else 3, dtype=torch.float64)])
            assert negated.shape == (0, 3)


def test_a_mean_over_an_expanded_axis_without_elements_is_no_number() -> None:
    def build(fd: FusionDefinition) -> None:
        x = rows_without_stride(fd)
        fd.add_output(fd.ops.div(fd.ops.sum(x, [0]), fd.ops.cast(fd.ops.size(x, 0), DataType.Double)))

    assert_same(define(build).execute([EMPTY_ROWS]), [torch.full((3,), math.nan)])


def test_an_element_of_an_expanded_axis_without_elements_is_an_error() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.max(rows_without_stride(fd), [0])))
    with pytest.raises(UserError, match="(?s)W743: .* takes one element along each axis that is dropped from .*, but axis .* has no elements at these sizes.*fix: make"):
        fd.execute([EMPTY_ROWS])
    assert_same(fd.execute([torch.ones(3).expand(2, 3)]), [torch.ones(3)])


def test_a_definition_with_a_constant_zero() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.sum(fd.define_tensor(shape=[-1, 0], contiguity=True), [1])))
    assert_same(fd.execute([torch.zeros(4, 0)]), [torch.zeros(4)])


def test_the_order_in_memory_is_kept() -> None:
    def build(fd: FusionDefinition) -> None:
        total = fd.ops.sum(tensor(fd, 3), [0])
        fd.add_output(fd.ops.stride_order(total, [0, 1]))

    (out,) = define(build).execute([torch.zeros(0, 3, 4)])
    assert_same([out], [torch.zeros(3, 4)])
    assert out.stride() == (1, 3)


def test_an_aliased_reduction_over_nothing_writes_the_input() -> None:
    def build(fd: FusionDefinition) -> None:
        running = tensor(fd, 1)
        fd.add_output(fd.ops.sum(tensor(fd, 2), [1]), running)

    fd, running = define(build), torch.randn(5)
    assert fd.execute([running, torch.zeros(5, 0)]) == []
    assert_same([running], [torch.zeros(5)])


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("sum", DataType.Bool, False), ("prod", DataType.Int32, 1), ("max", DataType.Int32, -(2**31)), ("min", DataType.Bool, True),
        ("max", DataType.UInt64, 0), ("prod", DataType.ComplexFloat, 1 + 0j), ("max", DataType.Float, -math.inf),
    ],
)  # fmt: skip
def test_identities(kind: str, dtype: DataType, expected: Any) -> None:
    value = MONOIDS[kind].identity_value(dtype)
    assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize("place", ["first", "last", "all but the first", "all but the last"])
@pytest.mark.parametrize("is_view", [True, False])
def test_a_slice_of_nothing_reads_nothing(place: str, is_view: bool) -> None:
    """Ends are clamped for sizes of 1 or more: what they then are for an axis without elements is an error, not an access outside."""

    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        size, less = x.size(1), fd.ops.sub(x.size(1), 1)
        first, end = {"first": (0, 1), "last": (less, size), "all but the first": (1, size), "all but the last": (0, less)}[place]
        part = fd.ops.slice(x, [0, first], [x.size(0), end])
        fd.add_output(part if is_view else fd.ops.neg(part))

    fd = define(build)
    for columns in (0, 3, 0, 1):
        x = torch.randn(4, columns)
        if not columns:
            with pytest.raises(UserError, match="are asked for, and the axis has 0 in this call|Invalid resized domain extent -1 of axis 1"):
                fd.execute([x])
            continue
        part = {"first": x[:, :1], "last": x[:, -1:], "all but the first": x[:, 1:], "all but the last": x[:, :-1]}[place]
        assert_same(fd.execute([x]), [part if is_view else -part])
