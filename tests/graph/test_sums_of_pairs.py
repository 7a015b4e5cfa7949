"""Sums over rows and over columns of a function of pairs are one sum, if pairs are alike both ways, or opposite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.values import ReductionOp
from weft.options import options

F64 = torch.float64
Pairs = Callable[[Any, Any, Any], Any]
"""(ops or torch, x [n, 1, c], x [1, n, c]) -> [n, n, c]"""


def distances(o: Any, a: Any, b: Any) -> Any:
    """Of points, [n, n, 1]."""
    d = o.sub(a, b)
    return o.add(o.sum(o.mul(d, d), 2, keepdim=True), 0.5)


CASES: dict[str, tuple[Pairs, int]] = {
    "differences": (lambda o, a, b: o.sub(a, b), 1),
    "forces": (lambda o, a, b: o.mul(o.pow(distances(o, a, b), -2.0), o.sub(a, b)), 1),
    "forces with a sign": (lambda o, a, b: o.neg(o.div(o.sub(b, a), o.sqrt(distances(o, a, b)))), 1),
    "odd functions": (lambda o, a, b: o.add(o.tanh(o.sub(a, b)), o.sub(o.sub(a, b), o.round(o.sub(a, b)))), 1),
    "products": (lambda o, a, b: o.exp(o.neg(o.abs(o.mul(a, b)))), 1),
    "odd times even": (lambda o, a, b: o.mul(o.sub(a, b), o.cos(o.sub(b, a))), 1),
    "powers": (lambda o, a, b: o.sub(o.pow(o.sub(a, b), 4.0), o.pow(o.sub(a, b), 2.0)), 1),
    "a choice": (lambda o, a, b: o.where(o.lt(o.abs(o.sub(a, b)), 1.0), o.sub(a, b), 0.0), 1),
    "norms of points": (lambda o, a, b: o.sub(o.add(o.sum(o.mul(a, a), 2, keepdim=True), o.sum(o.mul(b, b), 2, keepdim=True)), o.mul(a, b)), 1),
    "odd and even": (lambda o, a, b: o.add(o.sub(a, b), o.abs(o.sub(a, b))), 2),
    "floors": (lambda o, a, b: o.floor(o.sub(a, b)), 2),
    "comparisons": (lambda o, a, b: o.where(o.lt(a, b), o.sub(a, b), 0.0), 2),
    "square roots": (lambda o, a, b: o.mul(o.exp(a), b), 2),
    "odd power of a sum": (lambda o, a, b: o.pow(o.add(o.sub(a, b), 1.0), 3.0), 2),
}  # fmt: skip


def defined(compute: Pairs, kind: str, c: int = 3) -> FusionDefinition:
    """Reductions of all pairs of points [n, c] over either axis; results [n, c]."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, c], contiguity=True)
        n = x.size(0)
        a, b = (fd.ops.broadcast_in_dim(x, [n, n, c], [axis, 2]) for axis in (0, 1))
        out = compute(fd.ops, a, b)
        for dim in (0, 1):
            fd.add_output(getattr(fd.ops, kind)(out, dim))
    return fd


def sums_in(fd: FusionDefinition) -> int:
    """Reductions over points, not over their coordinates."""
    found = [e.tensor_outputs[0].get_logical_domain() for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, ReductionOp)]
    return sum(axes[0].is_reduction() or axes[1].is_reduction() for axes in found if len(axes) == 3)


class Double:
    """torch's functions, of the same names as weft's."""

    def __getattr__(self, name: str) -> Any:
        given = getattr(torch, name)
        return lambda *operands, **keywords: given(*(torch.tensor(v, dtype=F64) if isinstance(v, float) else v for v in operands), **keywords)


@pytest.mark.parametrize("n", [37, 1, 66, 0])
@pytest.mark.parametrize("name", CASES)
def test_sums(name: str, n: int) -> None:
    compute, sums = CASES[name]
    fd = defined(compute, "sum")
    assert sums_in(fd) == sums
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute([x])
    want = compute(Double(), x.double()[:, None], x.double()[None]).expand(n, n, 3)
    for dim, out in enumerate(outs):
        torch.testing.assert_close(out.double(), want.sum(dim), rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("kind", ["max", "min", "prod"])
@pytest.mark.parametrize(("name", "sums"), [("products", 1), ("differences", 2)])
def test_other_reductions_are_shared_if_pairs_are_alike(name: str, sums: int, kind: str) -> None:
    fd = defined(CASES[name][0], kind)
    assert sums_in(fd) == sums
    x = torch.rand(9, 3)
    with poisoned_outputs():
        outs = fd.execute([x])
    want = CASES[name][0](torch, x.double()[:, None], x.double()[None])
    for dim, out in enumerate(outs):
        torch.testing.assert_close(out.double(), want.prod(dim) if kind == "prod" else getattr(want, f"a{kind}")(dim), rtol=1e-5, atol=1e-6)


def test_a_matrix_in_memory_is_not_alike_both_ways() -> None:
    with FusionDefinition() as fd:
        m = fd.define_tensor([41, 41], contiguity=True)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(fd.ops.mul(m, m), dim))
    assert sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs()) == 2
    x = torch.randn(41, 41)
    for dim, out in enumerate(fd.execute([x])):
        torch.testing.assert_close(out.double(), (x.double() ** 2).sum(dim), rtol=1e-5, atol=1e-5)


def test_a_matrix_and_its_transpose() -> None:
    """m + m.T is alike both ways although m is not, m - m.T is opposite."""
    for name, sign in (("add", 1), ("sub", -1)):
        with FusionDefinition() as fd:
            m = fd.define_tensor([29, 29], contiguity=True)
            both = getattr(fd.ops, name)(m, fd.ops.permute(m, [1, 0]))
            for dim in (0, 1):
                fd.add_output(fd.ops.sum(both, dim))
        assert sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs()) == 1
        x = torch.randn(29, 29)
        for dim, out in enumerate(fd.execute([x])):
            torch.testing.assert_close(out.double(), (x.double() + sign * x.double().T).sum(dim), rtol=1e-5, atol=1e-5)


def test_masks_of_positions() -> None:
    """The diagonal is the same both ways, what is below it is not."""
    for op, sums in (("ne", 1), ("lt", 2)):
        with FusionDefinition() as fd:
            x = fd.define_tensor([53], contiguity=True)
            place = fd.ops.iota(fd.define_scalar(53), dtype=DataType.Int)
            (a, b), (i, j) = ([fd.ops.broadcast_in_dim(t, [53, 53], [axis]) for axis in (0, 1)] for t in (x, place))
            out = fd.ops.where(getattr(fd.ops, op)(i, j), fd.ops.mul(a, b), 0.0)
            for dim in (0, 1):
                fd.add_output(fd.ops.sum(out, dim))
        assert sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs()) == sums
        v, at = torch.randn(53), torch.arange(53)
        want = torch.where(getattr(torch, op)(at[:, None], at), v.double()[:, None] * v.double(), 0.0)
        with poisoned_outputs():
            outs = fd.execute([v])
        for dim, out in enumerate(outs):
            torch.testing.assert_close(out.double(), want.sum(dim), rtol=1e-5, atol=1e-5)
