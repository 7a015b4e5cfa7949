"""Rows scattered in kernels: sums, maxima and minima at positions that repeat, beside torch in float64; vectors, reshapes, several places, skipped positions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition, options
from weft.ops.lookups import BadIndex


def defined(define: Callable[[Any, Any], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        define(fd, fd.ops)
    return fd


def scattered(base: torch.Tensor, index: torch.Tensor, source: torch.Tensor, dim: int, kind: str = "sum", skip: bool = False) -> tuple[FusionDefinition, torch.Tensor]:
    def define(fd: Any, o: Any) -> None:
        fd.add_output(o.scatter_rows(*(fd.from_pytorch(t) for t in (base, index, source)), dim, kind, skip))

    fd = defined(define)
    with poisoned_outputs():
        (out,) = fd.execute([base, index, source])
    return fd, out


def wanted(base: torch.Tensor, index: torch.Tensor, source: torch.Tensor, dim: int, kind: str = "sum") -> torch.Tensor:
    last = dim + source.dim() - base.dim()
    flat = [t.expand(source.shape).flatten(dim, last) for t in (index, source)]
    wide = base.double() if base.is_floating_point() else base
    return wide.scatter_reduce(dim, flat[0].long(), flat[1].to(wide.dtype), {"sum": "sum", "max": "amax", "min": "amin"}[kind])


SHAPES = {  # base, index, source, dim
    "rows": ((10, 64), (33, 1), (33, 64), 0),
    "odd rows": ((10, 7), (33, 1), (33, 7), 0),
    "one row": ((1, 6), (5, 1), (5, 6), 0),
    "one element": ((9,), (300,), (300,), 0),
    "two axes of places": ((10, 12), (3, 11, 1), (3, 11, 12), 0),
    "an axis in front": ((3, 10, 8), (1, 33, 1), (3, 33, 8), 1),
    "places of each sample": ((3, 10, 8), (3, 33, 1), (3, 33, 8), 1),
    "an index of all elements": ((3, 10, 8), (3, 33, 8), (3, 33, 8), 1),
    "the innermost axis": ((5, 10), (1, 40), (5, 40), 1),
    "rows of two axes": ((10, 3, 4), (33, 1, 1), (33, 3, 4), 0),
}


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_kinds(shape: str, dtype: torch.dtype, kind: str) -> None:
    sizes, places, given, dim = SHAPES[shape]
    base, source = torch.randn(sizes).mul(9).to(dtype), torch.randn(given).mul(9).to(dtype)
    index, kept = torch.randint(0, sizes[dim], places), base.clone()
    _, out = scattered(base, index, source, dim, kind)
    exact = wanted(base, index, source, dim, kind)
    assert out.dtype is dtype and torch.equal(base, kept)
    if kind != "sum" or not dtype.is_floating_point:
        assert torch.equal(out.to(exact.dtype), exact)
        return
    size = wanted(base.abs(), index, source.abs(), dim)
    unit = {torch.float64: 2.0**-53}.get(dtype, 2.0**-24)
    narrow = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(dtype, 0.0)  # of the result to its type
    assert ((out.double() - exact).abs() <= (1 + index.numel()) * unit * size + narrow * exact.abs() + (dtype is torch.float16) * 2.0**-24).all()


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_that_replace_others(shape: str, dtype: torch.dtype, is_in_place: bool) -> None:
    """As many as there are places at most, because of several for one place any may stay."""
    sizes, places, given, dim = SHAPES[shape]
    count = math.prod(given[dim : dim + len(given) - len(sizes) + 1])
    sizes = (*sizes[:dim], count + 3, *sizes[dim + 1 :])
    base, source = torch.randn(sizes).mul(9).to(dtype), torch.randn(given).mul(9).to(dtype)
    index = torch.randperm(count + 3)[:count].view([n if dim <= d <= dim + len(given) - len(sizes) else 1 for d, n in enumerate(given)]).expand(places)
    last = dim + len(given) - len(sizes)
    exact = base.view(bits := {1: torch.uint8}.get(dtype.itemsize, dtype)).scatter(dim, *(t.expand(given).flatten(dim, last) for t in (index, source.view(bits))))
    kept = base.clone()

    def define(fd: Any, o: Any) -> None:
        target, *others = (fd.from_pytorch(t) for t in (base, index.contiguous(), source))
        fd.add_output(o.scatter_rows(target, *others, dim, "set"), target if is_in_place else None)

    fd = defined(define)
    with poisoned_outputs():
        out = fd.execute([base, index.contiguous(), source])
    assert torch.equal((base if is_in_place else out[0]).view(bits), exact) and (is_in_place or torch.equal(base.view(bits), kept.view(bits)))
    assert str(fd.fec._caller.last).startswith("1 kernel;" if is_in_place else "2 kernels;")


def test_a_base_with_gaps_or_another_reader_is_copied() -> None:
    def define(fd: Any, o: Any, *, reads: bool) -> None:
        target, index, source = (fd.from_pytorch(t) for t in (x, i, s))
        out = o.scatter_rows(target, o.broadcast(index, is_broadcast_dim=[False, True]), source, 0, "set")
        fd.add_output(out, target)
        fd.add_output(o.mul(out, target) if reads else o.mul(out, 2.0))

    i, s = torch.randperm(12)[:5], torch.randn(5, 6)
    for x, reads in ((torch.randn(12, 6), True), (torch.randn(12, 9)[:, :6], False)):
        before = x.clone()
        wanted = before.index_copy(0, i, s)
        with poisoned_outputs():
            out = defined(functools.partial(define, reads=reads)).execute([x, i, s])[-1]
        assert torch.equal(x, wanted)
        torch.testing.assert_close(out, wanted * before if reads else wanted * 2)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_positions_outside_are_skipped(kind: str) -> None:
    base, source, index = torch.randn(10, 12), torch.randn(40, 12), torch.randint(-2, 12, (40, 1))
    _, out = scattered(base, index, source, 0, kind, skip=True)
    inside = ((index >= 0) & (index < 10)).flatten()
    torch.testing.assert_close(out, wanted(base, index[inside], source[inside], 0, kind).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wrong", [10, -1, 1 << 40])
def test_others_are_errors_of_the_emulator(wrong: int) -> None:
    index = torch.zeros(4, 1, dtype=torch.int64)
    index[2] = wrong
    with pytest.raises(RuntimeError, match="position|out of range"):
        scattered(torch.zeros(10, 3), index, torch.ones(4, 3), 0)


def test_a_reshape_of_the_rows_is_in_the_kernel() -> None:
    """Tokens in two axes, whose gradient another op made with one: the axis is cut, and nothing is stored between."""

    def define(fd: Any, o: Any) -> None:
        base, index, source = (fd.from_pytorch(t) for t in (x, i, s))
        cut = o.reshape(o.mul(source, 3.0), [5, 6, 8])
        fd.add_output(o.scatter_rows(base, o.broadcast(index, is_broadcast_dim=[False, False, True]), cut, 0))

    x, i, s = torch.randn(7, 8), torch.randint(0, 7, (5, 6)), torch.randn(30, 8)
    fd = defined(define)
    torch.testing.assert_close(fd.execute([x, i, s])[0], x.index_add(0, i.flatten(), 3 * s))
    assert str(fd.fec._caller.last).splitlines()[0].startswith("2 kernels;")


def test_rows_of_the_result_are_cut() -> None:
    def define(fd: Any, o: Any) -> None:
        base, index, source = (fd.from_pytorch(t) for t in (x, i, s))
        out = o.scatter_rows(base, o.broadcast(index, is_broadcast_dim=[False, True]), source, 0)
        fd.add_output(o.mul(o.reshape(out, [7, 3, 4]), 2.0))

    x, i, s = torch.randn(7, 12), torch.randint(0, 7, (50,)), torch.randn(50, 12)
    torch.testing.assert_close(defined(define).execute([x, i, s])[0], 2 * x.index_add(0, i, s).view(7, 3, 4))


def test_two_sums_of_the_same_rows() -> None:
    """Into memories of the same size that begin as zeros: each has its own."""

    def define(fd: Any, o: Any) -> None:
        first, second, source = (fd.from_pytorch(t) for t in (i, j, s))
        zeros = [o.full([7, 12], 0.0, dtype=source.dtype()) for _ in range(2)]
        for begun, index in zip(zeros, (first, second)):
            fd.add_output(o.scatter_rows(begun, o.broadcast(index, is_broadcast_dim=[False, True]), o.mul(source, 2.0), 0))

    i, j, s = torch.randint(0, 7, (50,)), torch.randint(0, 7, (50,)), torch.randn(50, 12)
    for out, index in zip(defined(define).execute([i, j, s]), (i, j)):
        torch.testing.assert_close(out, torch.zeros(7, 12).index_add(0, index, 2 * s))


def test_sums_that_are_looked_up_again() -> None:
    """Zeros that scatters write to are not made again for each reader."""

    def define(fd: Any, o: Any) -> None:
        index, source = fd.from_pytorch(i), fd.from_pytorch(s)
        wide = o.broadcast(index, is_broadcast_dim=[False, True])
        total = o.scatter_rows(o.full([7, 3], 0.0, dtype=source.dtype()), wide, source, 0)
        fd.add_output(o.div(o.index_select(source, index, 0), o.index_select(o.where(o.eq(total, 0.0), 1.0, total), index, 0)))

    i, s = torch.randint(0, 7, (50,)), torch.rand(50, 3)
    total = torch.zeros(7, 3).index_add(0, i, s)
    torch.testing.assert_close(defined(define).execute([i, s])[0], s[i] / total[i])


def test_one_definition_at_many_sizes() -> None:
    fd = None
    for rows, columns, count in ((3, 4, 9), (1, 1, 5), (70, 3, 2), (4, 0, 3), (5, 6, 0), (8, 65, 33), (9, 128, 77)):
        x, i, s = torch.randn(rows, columns), torch.randint(0, rows, (count,)), torch.randn(count, columns)

        def define(fd: Any, o: Any) -> None:
            base, source = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
            index = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int)
            fd.add_output(o.scatter_rows(base, o.broadcast(index, is_broadcast_dim=[False, True]), source, 0))

        fd = fd or defined(define)
        torch.testing.assert_close(fd.execute([x, s, i])[0], x.index_add(0, i, s))


def test_rows_of_unequal_sizes_are_refused() -> None:
    fd = FusionDefinition()
    with fd:
        base, source = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
        index = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.scatter_rows(base, fd.ops.broadcast(index, is_broadcast_dim=[False, True]), source, 0))
    with pytest.raises(RuntimeError, match="axes of rows that are scattered"):
        fd.execute([torch.zeros(3, 4), torch.ones(5, 6), torch.zeros(5, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("sizes", "kind", "told"),
    [(((3, 4), (5, 1), (5, 6)), "sum", "elements in one tensor"), (((3, 4), (5,), (5, 4)), "sum", "dimensions"), (((3, 4), (5, 1), (5, 4)), "prod", "kind is 'prod'"),
     (((3, 4), (5,), (5,)), "sum", "axes and src"), (((3, 4), (2, 1), (5, 4)), "sum", "elements in one tensor")],
)  # fmt: skip
def test_what_is_refused(sizes: tuple[tuple[int, ...], ...], kind: str, told: str) -> None:
    with FusionDefinition() as fd:
        base, index, source = (fd.define_tensor(list(s), dtype=t) for s, t in zip(sizes, (DataType.Float, DataType.Int, DataType.Float)))
        with pytest.raises(BadIndex, match=told):
            fd.ops.scatter_rows(base, index, source, 0, kind)
        fd.add_output(fd.ops.neg(base))


@pytest.mark.parametrize("check", ["bounds", "bounds,races"])
def test_additions_of_vectors_race_with_nothing(check: str) -> None:
    base, index, source = torch.zeros(3, 64), torch.randint(0, 3, (500, 1)), torch.randn(500, 64)
    with options(check=check, seed=7):
        _, out = scattered(base, index, source, 0)
    torch.testing.assert_close(out, base.index_add(0, index.flatten(), source), atol=1e-4, rtol=1e-5)


def test_rows_stay_with_torch_where_equal_bits_are_asked_for() -> None:
    base, index, source = torch.zeros(3, 16), torch.randint(-1, 3, (500, 1)), torch.randn(500, 16)
    with options(deterministic=True):
        fd, out = scattered(base, index, source, 0, skip=True)
        assert "torch" in str(fd.fec._caller.last).splitlines()[0]
        inside = index.flatten() >= 0
        torch.testing.assert_close(out, base.index_add(0, index.flatten()[inside], source[inside]), atol=1e-4, rtol=1e-5)
        fd, out = scattered(base, index, source, 0, "max", skip=True)
        assert "torch" not in str(fd.fec._caller.last).splitlines()[0] and torch.equal(out.double(), wanted(base, index[inside], source[inside], 0, "max"))


def test_gradients_of_rows() -> None:
    """Each row has the gradient of where it was added; a skipped one has none."""
    base, index, source = torch.randn(6, 8, requires_grad=True), torch.randint(-1, 6, (30, 1)), torch.randn(30, 8, requires_grad=True)

    def define(fd: Any, o: Any) -> None:
        fd.add_output(o.scatter_rows(*(fd.from_pytorch(t) for t in (base, index, source)), 0, "sum", True))

    fd = defined(define)
    fd.autograd()
    (out,) = fd.execute([base, index, source])
    slope = torch.randn(6, 8)
    of_base, of_source = torch.autograd.grad(out, [base, source], slope)
    assert torch.equal(of_base, slope) and torch.equal(of_source, torch.where(index < 0, torch.zeros(()), slope[index.flatten()]))


def test_the_text_of_a_definition_makes_it_again() -> None:
    base, index, source = torch.randn(6, 8), torch.randint(-1, 6, (30, 1)), torch.randn(30, 8)
    fd, out = scattered(base, index, source, 0, "max", skip=True)
    assert "scatter_rows(" in repr(fd) and "kind='max'" in repr(fd) and "skip=True" in repr(fd)
