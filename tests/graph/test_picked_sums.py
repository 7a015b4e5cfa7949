"""Sums that pick one element of a row are lookups."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16, torch.int64: DataType.Int, torch.int32: DataType.Int32}


def declared(fd: FusionDefinition, tensor: torch.Tensor):
    return fd.define_tensor(shape=[-1] * tensor.dim(), contiguity=True, dtype=TYPES[tensor.dtype])


def is_at(fd: FusionDefinition, index, like, dim: int, n: int, start: int = 0):
    """Where the position along `dim` is the row's index."""
    zero, one, length = (fd.define_scalar(v, dtype=DataType.Int) for v in (start, 1, n))
    place = fd.ops.broadcast(fd.ops.iota(length, zero, one, DataType.Int), [d != dim for d in range(like.ndim)])
    return fd.ops.eq(place, fd.ops.broadcast(index, [d == dim for d in range(like.ndim)]))


def picked(fd: FusionDefinition, x, index, dim: int, n: int, start: int = 0):
    return fd.ops.sum(fd.ops.where(is_at(fd, index, x, dim, n, start), x, fd.define_scalar(0.0)), [dim])


def run(fd: FusionDefinition, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, list[str]]:
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute(inputs)
    return out, [kernel.scheduler for kernel in fd.fec.kernel_runtimes]


@pytest.mark.parametrize("index_type", [torch.int64, torch.int32])
@pytest.mark.parametrize("shape, dim", [((37, 45), 1), ((37, 45), 0), ((3, 5, 7), 1), ((1, 9), 1), ((9, 1), 1)])
def test_one_element_of_each_row(shape: tuple[int, ...], dim: int, index_type: torch.dtype) -> None:
    """Other elements are no numbers, and positions may be outside: their rows are 0."""
    n, rows = shape[dim], [extent for d, extent in enumerate(shape) if d != dim]
    index = torch.randint(-2, n + 2, rows, generator=torch.Generator().manual_seed(n)).to(index_type)
    index.view(-1)[0], index.view(-1)[-1] = -100, n
    inside = (index >= 0) & (index < n)
    at = torch.where(inside, index, 0).long().unsqueeze(dim)
    wanted = torch.randn(rows)
    x = torch.full(shape, float("nan")).scatter_(dim, at, wanted.unsqueeze(dim))
    with FusionDefinition() as fd:
        fd.add_output(picked(fd, declared(fd, x), declared(fd, index), dim, n))
    out, schedulers = run(fd, [x, index])
    assert torch.equal(out, torch.where(inside, wanted, 0.0)) and "reduction" not in schedulers


def test_positions_that_begin_elsewhere_are_summed() -> None:
    x, index = torch.randn(6, 8), torch.randint(0, 10, (6,))
    with FusionDefinition() as fd:
        fd.add_output(picked(fd, declared(fd, x), declared(fd, index), 1, 8, start=2))
    out, _ = run(fd, [x, index])
    assert torch.equal(out, torch.where(torch.arange(2, 10) == index[:, None], x, 0.0).sum(1))


def test_what_all_columns_share_is_not_looked_up() -> None:
    """As the gradient of a loss for each row: its sum over the classes is the row's number."""
    rows, index = torch.randn(11), torch.tensor([0, 5, -1, 6, 7, 3, 2, 1, 100, 4, 0])
    with FusionDefinition() as fd:
        r, i = declared(fd, rows), declared(fd, index)
        spread = fd.ops.broadcast_in_dim(r, [11, 7], [0])
        fd.add_output(fd.ops.sum(fd.ops.where(is_at(fd, i, spread, 1, 7), spread, fd.define_scalar(0.0)), [1]))
    out, schedulers = run(fd, [rows, index])
    assert torch.equal(out, torch.where((index >= 0) & (index < 7), rows, 0.0)) and schedulers == ["pointwise"]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_number_added_to_all_is_counted(is_first: bool) -> None:
    """As the gradient of a loss with smoothed labels."""
    rows, even, index = torch.randn(11), torch.randn(11), torch.tensor([0, 5, -1, 6, 7, 3, 2, 1, 100, 4, 0])
    with FusionDefinition() as fd:
        r, e, i = declared(fd, rows), declared(fd, even), declared(fd, index)
        spread, beside = (fd.ops.broadcast_in_dim(t, [11, 7], [0]) for t in (r, e))
        chosen = fd.ops.where(is_at(fd, i, spread, 1, 7), spread, fd.define_scalar(0.0))
        fd.add_output(fd.ops.sum(fd.ops.add(beside, chosen) if is_first else fd.ops.add(chosen, beside), [1]))
    out, schedulers = run(fd, [rows, even, index])
    torch.testing.assert_close(out, 7 * even + torch.where((index >= 0) & (index < 7), rows, 0.0))
    assert schedulers == ["pointwise"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_beside", [True, False])
def test_factors_of_rows_multiply_the_one_element(dtype: torch.dtype, has_beside: bool) -> None:
    """As torch writes the gradient of a loss: a tensor of zeros instead of the number, its type widened, times the rows' weights, times a number."""
    rows, weights, index = torch.randn(11).to(dtype), torch.randn(11), torch.tensor([0, 5, -1, 6, 7, 3, 2, 1, 100, 4, 0])
    with FusionDefinition() as fd:
        r, w, i = declared(fd, rows), declared(fd, weights), declared(fd, index)
        spread, factor = (fd.ops.broadcast_in_dim(t, [11, 7], [0]) for t in (r, w))
        zeros = fd.ops.full([11, 7], fd.define_scalar(0.0, dtype=TYPES[dtype]), TYPES[dtype])
        chosen = fd.ops.cast(fd.ops.where(is_at(fd, i, spread, 1, 7), spread, fd.ops.set(zeros)), DataType.Float)
        term = fd.ops.mul(fd.define_scalar(0.7), fd.ops.mul(fd.ops.set(chosen), factor))
        fd.add_output(fd.ops.sum(fd.ops.add(term, factor) if has_beside else term, [1]))
    out, schedulers = run(fd, [rows, weights, index])
    wanted = 0.7 * weights.double() * torch.where((index >= 0) & (index < 7), rows, 0.0) + 7 * weights.double() * has_beside
    torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=1e-6)
    assert schedulers == ["pointwise"]


def test_a_number_is_rounded_to_the_narrow_type_that_the_definition_has() -> None:
    index = torch.tensor([0, 5, -1])
    with FusionDefinition() as fd:
        i = declared(fd, index)
        like = fd.ops.broadcast_in_dim(i, [3, 7], [0])
        tenth, zero = (fd.define_scalar(v, dtype=DataType.BFloat16) for v in (0.1, 0.0))
        chosen = fd.ops.cast(fd.ops.where(is_at(fd, i, like, 1, 7), tenth, zero), DataType.BFloat16)
        fd.add_output(fd.ops.sum(fd.ops.cast(chosen, DataType.Float), [1]))
    out, _ = run(fd, [index])
    assert torch.equal(out, torch.tensor([0.1, 0.1, 0.0]).bfloat16().float())


def test_a_factor_that_varies_along_the_row_stays_in_the_sum() -> None:
    rows, columns, index = torch.randn(11), torch.randn(7), torch.randint(0, 7, (11,))
    with FusionDefinition() as fd:
        r, c, i = declared(fd, rows), declared(fd, columns), declared(fd, index)
        spread = fd.ops.broadcast_in_dim(r, [11, 7], [0])
        chosen = fd.ops.where(is_at(fd, i, spread, 1, 7), spread, fd.define_scalar(0.0))
        fd.add_output(fd.ops.sum(fd.ops.mul(chosen, fd.ops.broadcast_in_dim(c, [11, 7], [1])), [1]))
    out, schedulers = run(fd, [rows, columns, index])
    torch.testing.assert_close(out, rows * columns[index])
    assert schedulers == ["reduction"]


@pytest.mark.parametrize("columns", [1, 7, 501, 4096])
def test_a_loss_without_a_gather_reads_its_rows_once(columns: int) -> None:
    """Also where there are copies between the ops, as frontends write them. Rows of one element are not reduced at all."""
    x, index = torch.randn(5, columns).bfloat16() * 9, torch.randint(0, columns, (5,))
    with FusionDefinition() as fd:
        a, i = declared(fd, x), declared(fd, index)
        wide = fd.ops.cast(a, DataType.Float)
        largest = fd.ops.set(fd.ops.broadcast(fd.ops.max(wide, [1]), [False, True]))
        shifted = fd.ops.sub(fd.ops.set(wide), largest)
        total = fd.ops.sum(fd.ops.exp(fd.ops.set(shifted)), [1], keepdim=True)
        logs = fd.ops.sub(fd.ops.set(shifted), fd.ops.log(fd.ops.set(total)))
        fd.add_output(fd.ops.neg(picked(fd, logs, i, 1, columns)))
    out, schedulers = run(fd, [x, index])
    torch.testing.assert_close(out.double(), torch.nn.functional.cross_entropy(x.double(), index, reduction="none"), rtol=1e-5, atol=1e-5)
    assert schedulers == ["pointwise" if columns == 1 else "reduction"]
