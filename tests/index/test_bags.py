"""Sums of bags: rows that an order lists, or neighbours, beside torch in float64; bags without rows, and places out of range."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.emulator.report import KernelFault
from weft.ops.lookups import BadIndex

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
UNITS = {torch.float64: 2.0**-53, torch.int64: 0.0, torch.int32: 0.0}


def bags(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First and end of bags that follow each other, of which some have no rows."""
    limits = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(0, length + 1, (max(0, count - 1),)).sort().values, torch.tensor([length])])
    return limits[:-1].contiguous(), limits[1:].contiguous()


def summing(*tensors: torch.Tensor, symbolic: bool = True) -> FusionDefinition:
    """A definition of the sums of bags of tensors like these, and of twice the sums in the type of the rows."""
    with FusionDefinition() as fd:
        given = [fd.from_pytorch(t, static_sizes=not symbolic) for t in tensors]
        total = fd.ops.bag_sum(*given)
        fd.add_output(total)
        fd.add_output(fd.ops.cast(fd.ops.add(total, total), dtype=given[0].dtype()))
    return fd


def wanted(
    x: torch.Tensor, first: torch.Tensor, end: torch.Tensor, order: torch.Tensor | None = None, weights: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    rows = x.double() if order is None else x.double()[order]
    rows = rows if weights is None else rows * weights.double().reshape(-1, *[1] * (x.dim() - 1))
    return torch.stack([rows[a:b].sum(0) for a, b in zip(first.tolist(), end.tolist())]) if len(first) else rows.new_zeros(0, *x.shape[1:])


def check(x: torch.Tensor, *places: torch.Tensor, symbolic: bool = True) -> None:
    with poisoned_outputs():
        total, double = summing(x, *places, symbolic=symbolic).execute([x, *places])
    sums = wanted(x, *places)
    assert total.dtype is (torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype) and total.shape == sums.shape
    unit = UNITS.get(x.dtype, 2.0**-24)
    bound = unit * (places[1] - places[0]).reshape(-1, *[1] * (x.dim() - 1)) * wanted(x.abs(), *places[:3], *(w.abs() for w in places[3:]))
    assert ((total.double() - sums).abs() <= bound).all()
    assert torch.equal(double, (total + total).to(x.dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("columns", [(1,), (13,), (16,), (5, 3), (2, 8), ()], ids=str)
def test_listed_rows(dtype: torch.dtype, columns: tuple[int, ...]) -> None:
    x, order = torch.randn(40, *columns).mul(9).to(dtype), torch.randint(0, 40, (61,))
    check(x, *bags(17, 61), order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neighbours(dtype: torch.dtype) -> None:
    check(torch.randn(61, 24).to(dtype), *bags(9, 61))


@pytest.mark.parametrize("length", [1, 3, 4, 8, 9, 31, 200])
def test_long_bags(length: int) -> None:
    """Rows are loaded in batches, the last of which is not full."""
    x = torch.randn(length, 12)
    check(x, torch.tensor([0, 0, length - 1]), torch.tensor([length, 1, length]), torch.randperm(length))


@pytest.mark.parametrize(("rows", "count", "bag_count"), [(1, 1, 1), (7, 0, 5), (7, 9, 0), (1, 40, 3)])
def test_few_rows(rows: int, count: int, bag_count: int) -> None:
    x, order = torch.randn(rows, 6), torch.randint(0, rows, (count,))
    for symbolic in (False, True):
        check(x, *bags(bag_count, count), order, symbolic=symbolic)
        check(x, *bags(bag_count, count), order, torch.randn(count), symbolic=symbolic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("columns", [(1,), (13,), (16,), (5, 3), ()], ids=str)
@pytest.mark.parametrize("symbolic", [True, False], ids=["symbolic", "static"])
def test_weights(dtype: torch.dtype, columns: tuple[int, ...], symbolic: bool) -> None:
    x, order = torch.randn(40, *columns).to(dtype), torch.randint(0, 40, (61,))
    check(x, *bags(17, 61), order, torch.randn(61).to(dtype), symbolic=symbolic)


def test_weights_of_neighbours_in_another_type() -> None:
    x, (first, end), weights = torch.randn(61, 24).bfloat16(), bags(9, 61), torch.randn(61)
    with FusionDefinition() as fd:
        given = [fd.from_pytorch(t) for t in (x, first, end, weights)]
        fd.add_output(fd.ops.bag_sum(*given[:3], weights=given[3]))
    with poisoned_outputs():
        (total,) = fd.execute([x, first, end, weights])
    sizes = wanted(x.abs(), first, end, None, weights.abs())
    assert ((total.double() - wanted(x, first, end, None, weights)).abs() <= 2.0**-24 * (end - first + 1)[:, None] * sizes).all()


def test_too_few_weights() -> None:
    """Known lengths are compared; of others no weight beyond the last is read."""
    x, (first, end), order = torch.randn(40, 8), bags(5, 61), torch.randint(0, 40, (61,))
    with pytest.raises(BadIndex, match="61 places and 60 weights"):
        summing(x, first, end, order, torch.randn(60), symbolic=False)
    with pytest.raises(BadIndex, match="BFloat16 and weights DataType.Double"):
        summing(x.bfloat16(), first, end, order, torch.randn(61).double())
    few = torch.randn(60)
    total, _ = summing(x, first, end, order, few).execute([x, first, end, order, few])
    torch.testing.assert_close(total.double(), wanted(x, first.clamp_max(60), end.clamp_max(60), order[:60], few), rtol=1e-5, atol=1e-5)


def test_no_source() -> None:
    check(torch.randn(0, 6), *bags(5, 0), torch.zeros(0, dtype=torch.int64))


def test_sizes_change() -> None:
    """One definition, many sizes; 32-bit places."""
    x, order = torch.randn(20, 8), torch.randint(0, 20, (30,))
    fd = summing(x, *bags(4, 30), order)
    for rows, columns, count, bag_count in [(20, 8, 30, 4), (3, 9, 50, 11), (100, 16, 5, 1), (2, 1, 3, 70)]:
        x, order = torch.randn(rows, columns), torch.randint(0, rows, (count,))
        first, end = bags(bag_count, count)
        total, _ = fd.execute([x, first, end, order])
        torch.testing.assert_close(total.double(), wanted(x, first, end, order), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["columns of a wider one", "transposed", "begins late"])
def test_strided_rows(kind: str) -> None:
    base = torch.randn(31, 48).to(torch.bfloat16)
    x = {"columns of a wider one": base[:, 3:27], "transposed": base.t(), "begins late": base.flatten()[5 : 5 + 30 * 40].view(30, 40)}[kind]
    order = torch.randint(0, x.shape[0], (77,))
    check(x, *bags(11, 77), order[::1])
    check(x, *bags(6, 20), torch.randint(0, x.shape[0], (40,))[::2])


def test_ops_around() -> None:
    """The rows are computed, and places too; sums feed a reduction."""
    x, weight, order = torch.randn(50, 20), torch.randn(20), torch.randint(0, 50, (90,))
    first, end = bags(12, 90)
    with FusionDefinition() as fd:
        a, w, f, e, i = (fd.from_pytorch(t) for t in (x, weight, first, end, order))
        total = fd.ops.bag_sum(fd.ops.mul(a, 2.0), fd.ops.add(f, 0), e, i)
        scaled = fd.ops.mul(total, fd.ops.broadcast_in_dim(w, shape=[first.numel(), 20], broadcast_dims=[1]))
        fd.add_output(fd.ops.sum(scaled, [1]))
        fd.add_output(total)
    out, total_out = fd.execute([x, weight, first, end, order])
    sums = wanted(x * 2, first, end, order)
    torch.testing.assert_close(total_out.double(), sums, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), (sums * weight.double()).sum(1), rtol=1e-4, atol=1e-4)


def test_looked_up_and_summed_again() -> None:
    """Sums of sums, read at other positions: neither is computed twice."""
    x, order = torch.randn(64, 8), torch.randperm(64)
    first, end, at = torch.arange(0, 64, 8), torch.arange(8, 72, 8), torch.tensor([7, 0, 3])
    with FusionDefinition() as fd:
        a, f, e, i, places = (fd.from_pytorch(t) for t in (x, first, end, order, at))
        eights = fd.ops.bag_sum(a, f, e, i)
        zero, all_of_them = fd.ops.iota(1, 0, 1, DataType.Int), fd.ops.iota(1, 8, 1, DataType.Int)
        fd.add_output(fd.ops.bag_sum(eights, zero, all_of_them))
        fd.add_output(fd.ops.index_select(fd.ops.neg(eights), places, 0))
    total, some = fd.execute([x, first, end, order, at])
    torch.testing.assert_close(total.double(), x.double().sum(0, keepdim=True), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(some.double(), -wanted(x, first, end, order)[at], rtol=1e-5, atol=1e-5)


def test_limits_are_cut() -> None:
    """A bag ends with the order, and one that ends before it begins has no rows: no access is wild."""
    x, order = torch.randn(6, 5), torch.tensor([5, 4, 3])
    total, _ = summing(x, *bags(3, 3), order).execute([x, torch.tensor([-4, 2, 1]), torch.tensor([2, 9, 0]), order])
    torch.testing.assert_close(total, torch.stack([x[5] + x[4], x[3], torch.zeros(5)]))


def test_positions_out_of_range_are_an_error_in_the_emulator() -> None:
    x, order = torch.randn(6, 5), torch.tensor([5, 6, 3])
    with pytest.raises(KernelFault, match="position 6 of an axis of 6 elements"):
        summing(x, *bags(1, 3), order).execute([x, torch.tensor([0]), torch.tensor([3]), order])


def test_reference() -> None:
    x, order = torch.randn(30, 7).to(torch.bfloat16), torch.randint(0, 30, (90,))
    first, end = bags(8, 90)
    for places in ((first, end, order), (first, end, order, torch.randn(90).to(torch.bfloat16)), (first, end, order, torch.randn(90))):
        fd = summing(x, *places)
        fd.validate([x, *places])


def test_text_defines_the_same() -> None:
    x, order = torch.randn(30, 7), torch.randint(0, 30, (90,))
    first, end = bags(8, 90)
    for places in ((first, end, order), bags(8, 30), (first, end, order, torch.randn(90))):
        fd = summing(x, *places)
        space: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
        exec(repr(fd), space)
        with FusionDefinition() as again:
            space["nvfuser_fusion"](again)
        for one, other in zip(fd.execute([x, *places]), again.execute([x, *places])):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda o, x, i, b: o.bag_sum(x, x, i), "must have type Int"),
        (lambda o, x, i, b: o.bag_sum(b, i, i), "cast it to one of"),
        (lambda o, x, i, b: o.bag_sum(o.sum(x, [0, 1]), i, i), "0-D"),
        (lambda o, x, i, b: o.bag_sum(x, i, i, o.broadcast(i, [True, False])), "order must have one axis"),
        (lambda o, x, i, b: o.bag_sum(x, i, i, i, x), "weights must have one axis"),
        (lambda o, x, i, b: o.bag_sum(x, i, i, i, i), "weights DataType.Int"),
        (lambda o, x, i, b: o.bag_sum(o.cast(x, DataType.Int), i, i, i, o.cast(i, DataType.Float)), "cast arg to Float"),
    ],
)
def test_refused(make: Any, words: str) -> None:
    x, i = torch.randn(6, 5), torch.arange(4)
    with pytest.raises(BadIndex, match=words), FusionDefinition() as fd:
        given = fd.from_pytorch(x), fd.from_pytorch(i), fd.from_pytorch(x > 0)
        fd.add_output(make(fd.ops, *given))


@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Half])
def test_sums_of_computed_rows_are_rounded_once(dtype: DataType) -> None:
    """The sum is in float32 although only its cast is needed."""
    x, order = torch.full((64, 8), 0.3), torch.arange(64)
    first, end = torch.tensor([0]), torch.tensor([64])
    with FusionDefinition() as fd:
        a, f, e, i = (fd.from_pytorch(t) for t in (x, first, end, order))
        fd.add_output(fd.ops.cast(fd.ops.bag_sum(fd.ops.mul(a, 3.0), f, e, i), dtype=dtype))
    (out,) = fd.execute([x, first, end, order])
    assert torch.equal(out, (x * 3.0).double().sum(0, keepdim=True).to(out.dtype))
