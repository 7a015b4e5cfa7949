"""A row, or positions, used along two axes of a matrix: each axis gets its own, so that one kernel computes what reads both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph import rows_of_two_axes
from weft.graph.normalize import normalize
from weft.ir.graph_ops import LookupOp
from weft.ir.values import IotaOp
from weft.options import options

SIZES = [37, 1, 64, 0]


def along(fd: FusionDefinition, row: Any, size: Any, axis: int) -> Any:
    return fd.ops.broadcast_in_dim(row, [size, size], [axis])


def pairs(compute: Callable[[FusionDefinition, Any, Any], Any], dtype: DataType = DataType.Float) -> FusionDefinition:
    """compute(v[:, None], v[None, :])"""
    with FusionDefinition() as fd:
        v = fd.define_tensor([-1], contiguity=True, dtype=dtype)
        out = compute(fd, along(fd, v, v.size(0), 0), along(fd, v, v.size(0), 1))
        fd.add_output(fd.ops.cast(out, dtype) if dtype is not DataType.Float else out)
    return fd


def run(fd: FusionDefinition, inputs: list[torch.Tensor], kernels: int = 1) -> list[torch.Tensor]:
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute(inputs)
    if all(t.numel() for t in outs):
        assert len(fd.fec.kernel_runtimes) == kernels  # type: ignore[attr-defined]
    return outs


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_differences_of_all_pairs(size: int, dtype: torch.dtype) -> None:
    fd = pairs(lambda fd, a, b: fd.ops.exp(fd.ops.neg(fd.ops.mul(fd.ops.sub(a, b), fd.ops.sub(a, b)))), {torch.float32: DataType.Float}.get(dtype, DataType.BFloat16))
    v = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    (out,) = run(fd, [v])
    w = v.double()
    torch.testing.assert_close(out.double(), torch.exp(-((w[:, None] - w) ** 2)), rtol=1e-5 if dtype is torch.float32 else 5e-3, atol=1e-6)


def test_strided_and_misaligned_rows() -> None:
    for v in (torch.randn(101)[1::2], torch.randn(60)[1:]):
        with FusionDefinition() as fd:
            row = fd.define_tensor([-1], contiguity=False)
            fd.add_output(fd.ops.sub(along(fd, row, row.size(0), 0), along(fd, row, row.size(0), 1)))
        (out,) = run(fd, [v])
        assert torch.equal(out, v[:, None] - v)


@pytest.mark.parametrize("size", SIZES[:3])
def test_one_row_beside_a_matrix_and_its_transpose(size: int) -> None:
    """exp(x - r[:, None]) * s[:, None] + (exp(x.t() - c[:, None]) * s[:, None]).t(): s is used along both axes, r and c along one each."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = fd.define_tensor([-1, -1], contiguity=True)
        r, c, s = (fd.define_tensor([-1], contiguity=True) for _ in range(3))
        n = x.size(0)
        scale = ops.mul(s, 2.0)
        rows = ops.mul(ops.exp(ops.sub(x, along(fd, r, n, 0))), along(fd, scale, n, 0))
        columns = ops.mul(ops.exp(ops.sub(ops.permute(x, [1, 0]), along(fd, c, n, 0))), along(fd, scale, n, 0))
        fd.add_output(ops.stride_order(ops.add(rows, ops.permute(columns, [1, 0])), [1, 0]))
    made = torch.Generator().manual_seed(size)
    x, r, c, s = torch.randn(size, size, generator=made), *(torch.randn(size, generator=made) for _ in range(3))
    (out,) = run(fd, [x, r, c, s])
    x, r, c, s = (t.double() for t in (x, r, c, s))
    want = torch.exp(x - r[:, None]) * 2 * s[:, None] + (torch.exp(x.t() - c[:, None]) * 2 * s[:, None]).t()
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    readings = [e for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, LookupOp)]
    assert len(readings) == (2 if size else 0) and {e.source.name for e in readings} == {3}  # of s alone


def test_a_row_that_is_also_a_result_and_a_reduction() -> None:
    with FusionDefinition() as fd:
        v = fd.define_tensor([-1], contiguity=True)
        w = fd.ops.mul(v, v)
        n = v.size(0)
        fd.add_output(w)
        fd.add_output(fd.ops.sum(fd.ops.mul(along(fd, w, n, 0), along(fd, v, n, 1)), [1]))
        fd.add_output(fd.ops.sum(w, [0]))
    v = torch.randn(45)
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute([v])
    d = v.double()
    for out, want in zip(outs, (d * d, d * d * d.sum(), (d * d).sum())):
        torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5)


def test_many_uses() -> None:
    with FusionDefinition() as fd:
        v = fd.define_tensor([-1], contiguity=True)
        total = along(fd, v, v.size(0), 0)
        for _ in range(60):
            total = fd.ops.add(fd.ops.mul(total, along(fd, v, v.size(0), 1)), along(fd, v, v.size(0), 0))
        fd.add_output(total)
    v = torch.rand(9)
    (out,) = run(fd, [v])
    want = v.double()[:, None].expand(9, 9)
    for _ in range(60):
        want = want * v.double() + v.double()[:, None]
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-4)


def clip_loss(x: torch.Tensor) -> torch.Tensor:
    labels = torch.arange(x.shape[0], device=x.device)
    return (F.cross_entropy(x, labels) + F.cross_entropy(x.t(), labels)) / 2


@pytest.mark.parametrize("size", [64, 33])
def test_loss_of_rows_and_columns(size: int) -> None:
    """The class of each column is looked up in the matrix itself, not in a transposed copy of it; forward three kernels, backward one."""
    x = torch.randn(size, size, generator=torch.Generator().manual_seed(size))
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    loss = torch.compile(clip_loss, backend="weft", options={"emulate": True}, dynamic=False)(ours)
    (gradient,) = torch.autograd.grad(loss, ours)
    want = clip_loss(theirs)
    (wanted,) = torch.autograd.grad(want, theirs)
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-7)


def test_copies_of_positions_and_of_rows() -> None:
    with FusionDefinition() as fd:
        ops = fd.ops
        v = fd.define_tensor([-1], contiguity=True)
        n = v.size(0)
        i = ops.set(ops.iota(n, fd.define_scalar(0), fd.define_scalar(1)))
        row = ops.set(v)
        causal = ops.ge(along(fd, i, n, 0), along(fd, i, n, 1))
        fd.add_output(ops.where(causal, ops.mul(along(fd, row, n, 0), along(fd, row, n, 1)), 0.0))
    v = torch.randn(41)
    (out,) = run(fd, [v])
    assert torch.equal(out, (v[:, None] * v).tril())


def test_rows_of_a_definition_with_another_conflict() -> None:
    """x + x.t() needs two kernels. The pairs beside it are one, and a row that is added along both its axes is read by one of the two."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, v, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        n = v.size(0)
        fd.add_output(ops.sub(along(fd, v, n, 0), along(fd, v, n, 1)))
        both = ops.add(x, ops.permute(x, [1, 0]))
        fd.add_output(ops.add(ops.add(both, along(fd, w, x.size(0), 0)), along(fd, w, x.size(0), 1)))
    x, v, w = torch.randn(21, 21), torch.randn(33), torch.randn(21)
    pairs_of_v, symmetric = run(fd, [x, v, w], kernels=3)
    assert torch.equal(pairs_of_v, v[:, None] - v)
    torch.testing.assert_close(symmetric.double(), (x + x.t()).double() + w.double()[:, None] + w.double(), rtol=1e-5, atol=1e-5)


def test_a_long_chain_of_positions() -> None:
    """More ops in a row than Python has frames."""
    with FusionDefinition() as fd:
        ops, place = fd.ops, fd.ops.iota(8, dtype=DataType.Int)
        for n in range(1200):
            place = ops.sub(n, place)
        fd.add_output(ops.add(fd.define_tensor([8, 8], contiguity=True, dtype=DataType.Int), ops.mul(along(fd, place, 8, 0), along(fd, place, 8, 1))))
    assert sum(isinstance(e, IotaOp) for e in normalize(fd.fusion).tensor_exprs()) == 2


def test_uses_stay_as_they_are_if_copies_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of_two_axes, "MOST_COPIES", 7)
    with FusionDefinition() as fd:
        v = fd.define_tensor([-1], contiguity=True)
        total = along(fd, v, v.size(0), 0)
        for _ in range(9):
            total = fd.ops.sub(fd.ops.mul(total, along(fd, v, v.size(0), 1)), along(fd, v, v.size(0), 0))
        fd.add_output(total)
    assert not any(isinstance(e, LookupOp) for e in normalize(fd.fusion).tensor_exprs())
    v = torch.rand(13)
    (out,) = fd.execute([v])
    want = v.double()[:, None].expand(13, 13)
    for _ in range(9):
        want = want * v.double() - v.double()[:, None]
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-4)


def causal(fd: FusionDefinition, x: Any, n: int) -> Any:
    """Elements at and below the diagonal."""
    place = fd.ops.iota(n, dtype=DataType.Int32)
    rows, columns = fd.ops.broadcast(place, [False, True]), fd.ops.broadcast(place, [True, False])
    return fd.ops.where(fd.ops.le(columns, rows), x, 0.0)


def distances(fd: FusionDefinition, x: Any, n: int) -> Any:
    """What is computed from positions is shared, too, and one is used twice."""
    place = fd.ops.add(fd.ops.cast(fd.ops.iota(n, dtype=DataType.Int32), DataType.Float), 0.5)
    scaled = fd.ops.mul(place, place)
    return fd.ops.add(fd.ops.mul(x, fd.ops.broadcast(scaled, [False, True])), fd.ops.sub(fd.ops.broadcast(scaled, [True, False]), place))


def turned(fd: FusionDefinition, x: Any, n: int) -> Any:
    """A lookup along each axis, by the same index."""
    place = fd.ops.sub(n - 1, fd.ops.iota(n, dtype=DataType.Int))
    return fd.ops.index_select(fd.ops.index_select(x, place, 0), place, 1)


def _distances(x: torch.Tensor) -> torch.Tensor:
    place = torch.arange(x.shape[0]).double() + 0.5
    return x * place[:, None].square() + place.square() - place


OF_POSITIONS: dict[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]] = {causal: torch.tril, distances: _distances, turned: lambda x: x.flip(0, 1)}


@pytest.mark.parametrize("n", [1, 2, 17, 64, 133])
@pytest.mark.parametrize("case", OF_POSITIONS, ids=lambda case: case.__name__)
@pytest.mark.parametrize("is_summed", [False, True])
def test_positions_counted_once_are_counted_for_each_axis(case: Callable[..., Any], n: int, is_summed: bool) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([n, n], contiguity=True)
        out = case(fd, x, n)
        fd.add_output(fd.ops.sum(out, [1]) if is_summed else out)
    x = torch.randn(n, n)
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x])
    want = OF_POSITIONS[case](x.double())
    want = want.sum(1) if is_summed else want
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
    assert len(fd.fec.kernel_runtimes) == 1


def test_positions_of_many_readers_are_copied_once_for_each_axis() -> None:
    """Not for each reader: 40 lookups of an image by computed positions need a chain of positions for each of its axes."""
    with FusionDefinition() as fd:
        ops, n = fd.ops, 12
        x = fd.define_tensor([n, n], contiguity=True)
        place, total = ops.iota(n, dtype=DataType.Int), None
        for _ in range(40):
            place = ops.sub(n - 1, place)
            part = ops.index_select(ops.index_select(x, place, 0), place, 1)
            total = part if total is None else ops.add(total, part)
        fd.add_output(total)
    chains = [e for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, IotaOp)]
    assert len(chains) == 2
    x = torch.randn(n, n)
    (out,) = run(fd, [x])
    torch.testing.assert_close(out.double(), 20 * (x.double() + x.double().flip(0, 1)), rtol=1e-5, atol=1e-5)


def test_positions_that_are_an_output_stay() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([6, 6], contiguity=True)
        place = fd.ops.iota(6, dtype=DataType.Int32)
        fd.add_output(place)
        fd.add_output(fd.ops.where(fd.ops.le(fd.ops.broadcast(place, [True, False]), fd.ops.broadcast(place, [False, True])), x, 0.0))
    x = torch.randn(6, 6)
    places, got = fd.execute([x])
    assert torch.equal(places, torch.arange(6, dtype=torch.int32)) and torch.equal(got, x.tril())


def test_positions_along_one_axis_are_counted_once() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 8], contiguity=True)
        place = fd.ops.iota(8, dtype=DataType.Int32)
        fd.add_output(fd.ops.where(fd.ops.le(place, 3), x, fd.ops.cast(place, DataType.Float)))
    assert sum(isinstance(e, IotaOp) for e in normalize(fd.fusion).tensor_exprs()) == 1


@pytest.mark.parametrize("size", SIZES)
def test_points_of_which_all_pairs_are_compared(size: int) -> None:
    """Weighted distances of points with three coordinates, which are read once for the rows and once for the columns."""
    with FusionDefinition() as fd:
        ops, x = fd.ops, fd.define_tensor([-1, 3], contiguity=True)
        n, w = x.size(0), fd.define_tensor([-1, -1], contiguity=True)
        d = ops.sub(*(ops.broadcast_in_dim(x, [n, n, 3], [axis, 2]) for axis in (0, 1)))
        fd.add_output(ops.mul(w, ops.sum(ops.abs(d), [2])))
    readings = [e for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, LookupOp)]
    assert [e.source.name for e in readings] == [0, 0]
    x, w = torch.randn(size, 3), torch.randn(size, size)
    (out,) = run(fd, [x, w])
    want = w.double() * (x.double()[:, None] - x.double()).abs().sum(2)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


def test_points_stay_where_reading_them_twice_is_not_enough() -> None:
    """A matrix of as many rows as columns beside its transpose has two axes in one loop, whatever points do."""
    with FusionDefinition() as fd:
        ops, x, m = fd.ops, fd.define_tensor([31, 3], contiguity=True), fd.define_tensor([31, 31], contiguity=True)
        d = ops.sub(*(ops.broadcast_in_dim(x, [31, 31, 3], [axis, 2]) for axis in (0, 1)))
        both = ops.add(m, ops.permute(m, [1, 0]))
        fd.add_output(ops.mul(ops.sum(ops.mul(d, d), [2]), both))
    assert not any(isinstance(e, LookupOp) for e in normalize(fd.fusion).tensor_exprs())
    x, m = torch.randn(31, 3), torch.randn(31, 31)
    with poisoned_outputs():
        (out,) = fd.execute([x, m])
    want = (x.double()[:, None] - x.double()).square().sum(2) * (m.double() + m.double().T)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [37, 2, 64])
def test_what_lookups_read_is_no_copy(size: int) -> None:
    """A lookup reads its source in memory, by no loop: a copy for it would be a kernel of its own."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([size, 5], contiguity=True)
        before = fd.ops.slice(fd.ops.pad(x, [1, 0]), [0, 0], [size, 5])
        one, other, turned = (fd.ops.broadcast_in_dim(t, [size, size, 5], [axis, 2]) for t, axis in ((x, 0), (x, 1), (before, 1)))
        fd.add_output(fd.ops.mul(fd.ops.sub(one, other), turned))
    x = torch.randn(size, 5, generator=torch.Generator().manual_seed(size))
    (out,) = run(fd, [x])
    assert torch.equal(out, (x[:, None] - x) * F.pad(x[:, :-1], (1, 0)))
