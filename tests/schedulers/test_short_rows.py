"""Reductions of a few neighbouring elements: a thread reduces several rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from channel_cases import with_params
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition, compiler
from weft.arch import H200
from weft.options import options
from weft.schedulers import short_rows

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float, torch.float64: DataType.Double}
SHAPES: list[tuple[tuple[int, ...], list[int]]] = [
    ((4001, 2), [1]), ((50, 640, 2), [2]), ((33, 7, 3), [2]), ((5, 8, 6, 8, 2), [2, 4]), ((3, 4, 2, 16, 2), [2, 4]), ((1001, 5), [1]), ((7, 4), [1]),
    ((64, 128, 4), [2]), ((1, 3), [1]), ((9, 1, 2), [2]), ((0, 2), [1]), ((6, 8), [1]), ((77, 6), [1]), ((2, 31, 15), [2]), ((3,), [0]), ((1, 1, 2), [0, 1, 2]),
]  # fmt: skip


def defined(dtype: torch.dtype, rank: int, dims: list[int]) -> FusionDefinition:
    """Sum of squares, and maximum plus sum, of what is widened."""
    wide = DataType.Double if dtype is torch.float64 else DataType.Float
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1] * rank, contiguity=True, dtype=TYPES[dtype]), wide)
        squares, total, largest = fd.ops.sum(fd.ops.mul(x, x), dims), fd.ops.sum(x, dims), fd.ops.max(x, dims)
        fd.add_output(fd.ops.cast(squares, TYPES[dtype]))
        fd.add_output(fd.ops.add(largest, total))
    return fd


def check(fd: FusionDefinition, x: torch.Tensor, dims: list[int]) -> None:
    with poisoned_outputs(), options(check="races"):
        squares, both = fd.execute([x])
    wide = x.double()
    eps = max(torch.finfo(x.dtype).eps, 1e-12)
    terms = x.numel() // max(1, squares.numel()) if x.dtype is torch.float32 else 1  # positive, and each is added with half an eps; 16 bits are rounded once
    torch.testing.assert_close(squares.double(), wide.square().sum(dims), rtol=eps * max(1, terms / 2), atol=1e-6)
    torch.testing.assert_close(both.double(), wide.amax(dims) + wide.sum(dims) if x.numel() else both.double(), rtol=1e-5, atol=1e-5)


def kind_of(fd: FusionDefinition) -> str:
    return getattr(fd.fec.kernel_runtimes[-1].proposal.params, "kind", "")


@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_as_chosen(dtype: torch.dtype, shape: tuple[int, ...], dims: list[int]) -> None:
    fd = defined(dtype, len(shape), dims)
    check(fd, torch.randn(shape).to(dtype), dims)
    if shape[-1] in (2, 3) and 0 not in shape and len(dims) < len(shape) and (dtype is not torch.float64 or shape[-1] == 3):
        assert kind_of(fd) == "short"


@pytest.mark.parametrize("results", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("shape", "dims", "lanes"), [((50, 640, 2), [2], 2), ((3, 8, 2, 16, 2), [2, 4], 1), ((40, 16, 3), [2], 1), ((5, 24, 6), [2], 2)], ids=str
)
def test_results_of_a_thread(shape: tuple[int, ...], dims: list[int], lanes: int, results: int) -> None:
    loads = -(-shape[-1] // lanes) * (2 if len(dims) > 1 else 1)
    fd = with_params(defined(torch.bfloat16, len(shape), dims), results=results, vector_elems=lanes, unroll=loads, bdimx=64)
    check(fd, torch.randn(shape).bfloat16(), dims)
    assert kind_of(fd) == "short"


@pytest.mark.parametrize("loads", [1, 2])
def test_fewer_loads_at_once_than_a_row_needs(loads: int) -> None:
    fd = with_params(defined(torch.bfloat16, 3, [2]), unroll=loads, bdimx=32)
    check(fd, torch.randn(9, 16, 5).bfloat16(), [2])


def test_misaligned_and_strided_inputs() -> None:
    fd = defined(torch.bfloat16, 2, [1])
    check(fd, torch.randn(2003).bfloat16()[1:].view(-1, 2), [1])
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=[False, True], dtype=DataType.BFloat16), DataType.Float)
        fd.add_output(fd.ops.sum(x, [1]))
    given = torch.randn(100, 7).bfloat16()[:, 1:4]
    torch.testing.assert_close(fd.execute([given])[0].double(), given.double().sum(1), rtol=1e-5, atol=1e-5)
    assert kind_of(fd) == "short"


@pytest.mark.parametrize(("rows", "columns"), [(288, 6), (2001, 3), (77, 5), (1, 6), (9, 1), (0, 6)])
def test_a_value_of_a_row_is_read_beside_its_elements_and_behind_its_sums(rows: int, columns: int) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
        scale = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Float)
        products, scaled = (fd.ops.broadcast(fd.ops.sum(value, [1]), [False, True]) for value in (x * y, -(x * scale)))
        fd.add_output(products * -0.5 * (scale * scale * scale))
        fd.add_output(scaled)
    given = [torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(rows, 1)]
    with poisoned_outputs(), options(check="races"):
        got = fd.execute(given)
    x, y, scale = (t.double() for t in given)
    want = (x * y).sum(1, keepdim=True) * -0.5 * scale**3, -(x * scale).sum(1, keepdim=True)
    for ours, theirs in zip(got, want):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    if rows == 288:
        assert kind_of(fd) == "short"


def moments(fd: FusionDefinition, x: Any) -> list[Any]:
    return list(fd.ops.var_mean(x, [1], 1))


def place(fd: FusionDefinition, x: Any) -> list[Any]:
    return [fd.ops.argmax(x, 1), fd.ops.cast(fd.ops.gt(fd.ops.min(x, [1]), 0.0), DataType.Float)]


@pytest.mark.parametrize(("define", "wanted"), [
    (moments, lambda x: [x.var(1), x.mean(1)]), (place, lambda x: [x.argmax(1), (x.amin(1) > 0).double()]),
], ids=["moments", "place"])  # fmt: skip
def test_states_of_several_fields(define: Callable[[FusionDefinition, Any], list[Any]], wanted: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        for out in define(fd, x):
            fd.add_output(out)
    given = torch.randn(1003, 3)
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute([given])
    for out, want in zip(outs, wanted(given.double()), strict=True):
        torch.testing.assert_close(out.double(), want.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("sizes", "dtype", "wanted"), [
    ((1 << 25, 2), torch.bfloat16, ("short", 2, 1, 4)), ((1 << 24, 3), torch.float32, ("short", 1, 3, 1)), ((1 << 24, 4), torch.bfloat16, ("short", 4, 1, 4)),
    ((1 << 22, 16), torch.bfloat16, ("inner", 8, 2, 1)), ((1 << 20, 100), torch.bfloat16, ("inner", 4, None, 1)),
])  # fmt: skip
def test_the_choice(sizes: tuple[int, int], dtype: torch.dtype, wanted: tuple[Any, ...]) -> None:
    fd = defined(dtype, 2, [1])
    env = dict(zip((a.sym for a in fd.fusion.inputs()[0].get_logical_domain()), sizes))
    params = compiler.propose(fd.fusion, env, {}, H200).params
    assert (params.kind, params.vector_elems) == wanted[:2] and (params.kind != "short" or (params.unroll, params.results) == wanted[2:])


@pytest.mark.parametrize(("rows", "runs"), [(4301, [5]), (4301, [3, 5]), (4224, [64]), (4225, [9, 9]), (3, [4])], ids=str)
def test_windows_that_are_looked_up(monkeypatch: pytest.MonkeyPatch, rows: int, runs: list[int]) -> None:
    """A thread adds up a row of elements at computed positions alone; not few rows, and not rows of more elements than it can have under way."""
    monkeypatch.setattr(short_rows, "SHORT_THREADS", 32)  # so that fewer rows fill the chip
    axes = [rows, *runs]
    x = torch.randn(2 * rows).bfloat16()
    with FusionDefinition() as fd:
        given = fd.define_tensor([-1], contiguity=True, dtype=DataType.BFloat16)
        steps = [fd.ops.broadcast(fd.ops.iota(n, 0, 1, dtype=DataType.Int), [d != at for d in range(len(axes))]) for at, n in enumerate(axes)]
        place = fd.ops.sub(fd.ops.mul(steps[0], 2), 3)
        for step in steps[1:]:
            place = fd.ops.add(place, step)
        place = fd.ops.minimum(fd.ops.maximum(place, 0), 2 * rows - 1)
        values = fd.ops.reshape(fd.ops.index_select(given, fd.ops.reshape(place, [math.prod(axes)]), 0), axes)
        weight = fd.ops.add(fd.ops.cast(steps[-1], DataType.Float), 1.0)
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.cast(values, DataType.Float), weight), list(range(1, len(axes)))))
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x])
    ranges = [torch.arange(n).view([-1 if d == at else 1 for d in range(len(axes))]) for at, n in enumerate(axes)]
    terms = x.double()[(2 * ranges[0] - 3 + sum(ranges[1:])).clamp(0, 2 * rows - 1)] * (ranges[-1] + 1)
    bound = terms.abs().sum(list(range(1, len(axes)))) * torch.finfo(torch.float32).eps * math.prod(runs)
    assert ((got.double() - terms.sum(list(range(1, len(axes))))).abs() <= bound).all()
    assert (kind_of(fd) == "short") == (rows > 4000 and math.prod(runs) <= short_rows.MOST_TERMS)
