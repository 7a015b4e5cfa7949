"""Corners of nvFuser's behaviour that programs rely on: one line each, with the result beside it. Types, shapes and values are compared exactly.

Read first: `CASES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fixture import DEVICE, run

from weft import DataType

D = DataType
NAN, INF = math.nan, math.inf
X = torch.arange(12.0).reshape(3, 4)
CASES: dict[str, tuple[Callable[..., Any], Sequence[Any], Sequence[torch.Tensor]]] = {}


def case(name: str, build: Callable[..., Any], inputs: Sequence[Any], *expected: torch.Tensor) -> None:
    """build(fd, ops, tensors and scalars): the outputs. inputs: a size of 1 is declared so."""
    CASES[name] = (build, inputs, expected)


def ints(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def between(first: int, last: int) -> None:
    """A slice whose ends are scalar inputs: as Python's."""
    case(f"slice {first}:{last}", lambda fd, o, x, a, b: [o.slice(x, [0, a], [3, b])], [X, first, last], X[:, first:last])


for ends in ((-3, -1), (1, 100), (5, 7), (2, 1), (-100, 2)):
    between(*ends)
# fmt: off
case("a constant slice beyond the end", lambda fd, o, x: [o.slice(x, [0, 1], [9, 9])], [X], X[:, 1:])
case("a slice that promises its ends", lambda fd, o, x: [o.slice(x, [0, 1], [3, 3], manual_normalization=True)], [X], X[:, 1:3])
case("a slice of an expanded axis", lambda fd, o, x: [o.slice(o.expand(o.broadcast(x, [True, False]), [5, -1]), [1, 0], [3, 3])], [X[0, :3]], X[0, :3].expand(2, 3).contiguous())
case("a slice of one element is broadcast", lambda fd, o, x: [o.add(o.slice(x, [0, 1], [3, 2]), x)], [X], X[:, 1:2] + X)
case("negative pads", lambda fd, o, x: [o.pad(x, [-1, 2, 1, -1])], [X], torch.nn.functional.pad(X, (-1, 2, 1, -1)))
case("a pad of a broadcast axis", lambda fd, o, x: [o.pad(o.broadcast(x, [False, True]), [1, 1], fd.define_scalar(2.0))], [X[0]], torch.nn.functional.pad(X[0][:, None], (1, 1), value=2.0))
case("a cat of nothing and something", lambda fd, o, a, b: [o.cat([a, b], 0)], [X[0, :0], X[0]], X[0])
case("an expand by a scalar input", lambda fd, o, x, n: [o.expand(x, [n, -1])], [X[:1], 5], X[:1].expand(5, 4))
case("a running sum stays int32", lambda fd, o, x: [o.cumsum(x, 0)], [ints(1, 2, 3, dtype=torch.int32)], ints(1, 3, 6, dtype=torch.int32))
case("a running sum of halves, from 2 on", lambda fd, o, x: [o.cumsum(x, 0, fd.define_scalar(2.0))], [torch.arange(5).half()], torch.tensor([2.0, 3, 5, 8, 12]).half())
case("a running sum along one element", lambda fd, o, x: [o.cumsum(x, 0)], [X[:1]], X[:1])
case("positions of a scalar", lambda fd, o, x: [o.argsort(s := o.sum(x, [0]), 0), *o.topk(s, fd.define_scalar(1), 0)], [X[0]], torch.tensor(0), torch.tensor(6.0), torch.tensor(0))
case("topk of a scalar input", lambda fd, o, x, k: [*o.topk(x, k, -1, True, True)], [torch.tensor([1.0, 5.0, 3.0]), 2], torch.tensor([5.0, 3.0]), ints(1, 2))
case("one value of topk is broadcast", lambda fd, o, x, k: [o.mul((t := o.topk(x, k, -1, True, True))[0], x), o.squeeze(t[1], [1])], [X, 1], X.amax(1, keepdim=True) * X, X.argmax(1))
case("a product over a reshape of nothing", lambda fd, o, a, b: [o.matmul(o.reshape(a, [a.size(0), o.mul(a.size(1), a.size(2))]), b)], [torch.empty(3, 0, 2), torch.empty(0, 4)], torch.zeros(3, 4))
case("select from the end", lambda fd, o, x: [o.select(x, fd.define_scalar(-1), 0)], [X], X[-1])
case("index_select by a scalar tensor", lambda fd, o, x, i: [o.index_select(x, i, 0)], [X, torch.tensor(2)], X[2:])
case("index_select by an index of the same rank", lambda fd, o, x, i: [o.index_select(x, i, 0)], [X, ints(2, 0)[:, None]], X[[2, 0]])
case("an axis named twice", lambda fd, o, x: [o.sum(x, [1, 1])], [X], X.sum(1))
case("a sum of truths is an integer", lambda fd, o, x: [o.sum(x, [0])], [torch.ones(3).bool()], torch.tensor(3))
case("a sum of integers as floats", lambda fd, o, x: [o.sum(x, [0], False, D.Float)], [ints(1, 2)], torch.tensor(3.0))
case("a sum over an expanded axis", lambda fd, o, x: [o.sum(o.expand(o.broadcast(x, [True, False]), [5, -1]), [0])], [X[0]], 5 * X[0])
case("real parts of real numbers", lambda fd, o, x: [o.real(x), o.isreal(x)], [X[0]], X[0], torch.ones(4).bool())
case("signs", lambda fd, o, x: [o.sign(x)], [torch.tensor([NAN, -0.0, -3.0])], torch.tensor([0.0, 0.0, -1.0]))
case("rounding half to even", lambda fd, o, x: [o.round(x)], [torch.tensor([0.5, 1.5, 2.5, -0.5])], torch.tensor([0.0, 2.0, 2.0, -0.0]))
case("what is no number is true", lambda fd, o, x: [o.cast(x, D.Bool)], [torch.tensor([NAN, 0.0, 3.0])], torch.tensor([True, False, True]))
case("negative powers of integers", lambda fd, o, x, y: [o.pow(x, y)], [ints(1, -1, 2, 0, -1), ints(-1, -3, -2, -1, -2)], ints(1, -1, 0, 0, 1))
case("shifts by more than there are bits", lambda fd, o, x, y: [o.bitwise_left_shift(x, y)], [ints(1, 1, 1), ints(64, -1, 3)], ints(0, 0, 8))
case("a right shift that fills with zeros", lambda fd, o, x, y: [o.logical_right_shift(x, y)], [ints(-8, dtype=torch.int32), ints(1, dtype=torch.int32)], ints(2147483644, dtype=torch.int32))
case("a variance with more corrections than elements", lambda fd, o, x: [o.var(x, [0], 5), o.var(x, [0], 3)], [X[0, :3]], torch.tensor(INF), torch.tensor(INF))
case("counting down", lambda fd, o: [o.iota(fd.define_scalar(3), fd.define_scalar(1), fd.define_scalar(-2)), o.iota(fd.define_scalar(0))], [], ints(1, -1, -3), ints())
case("counting in other types than the start's", lambda fd, o, n: [o.iota(3, n, fd.define_scalar(2), D.Int32), o.iota(fd.define_scalar(3), n, dtype=D.UInt64), o.iota(3, fd.define_scalar(1.5), fd.define_scalar(-0.5), D.Float)], [100], ints(100, 102, 104, dtype=torch.int32), ints(100, 101, 102, dtype=torch.uint64), torch.tensor([1.5, 1.0, 0.5]))
case("counting in floats of 16 bits", lambda fd, o: [o.iota(2100, fd.define_scalar(-1.0), fd.define_scalar(0.5), kind) for kind in (D.Half, D.BFloat16)], [], *[(torch.arange(2100).double() / 2 - 1).to(kind) for kind in (torch.float16, torch.bfloat16)])
case("a full of nothing", lambda fd, o: [o.full([2, 0], fd.define_scalar(1.0), D.Half)], [], torch.empty(2, 0).half())
case("quotients of integers", lambda fd, o, x: [o.div(x, 2), o.truediv(x, 2)], [ints(-3, 3)], ints(-1, 1), torch.tensor([-1.5, 1.5]))
case("remainders of integers", lambda fd, o, x: [o.mod(x, 3), o.fmod(x, 3), o.remainder(x, 3)], [ints(-4, 4)], ints(-1, 1), ints(-1, 1), ints(2, 1))
case("where keeps halves", lambda fd, o, c, a, b: [o.where(c, a, b)], [torch.tensor([True, False]), torch.ones(2).half(), torch.zeros(2).half()], torch.tensor([1.0, 0.0]).half())
case("an integer beside a number with a fraction", lambda fd, o, x: [o.gt(x, 1.5)], [ints(1, 2)], torch.tensor([False, True]))
case("maxima keep what is no number", lambda fd, o, x: [o.max(x, [0]), o.maximum(x, 0.0), o.relu(x)], [torch.tensor([1.0, NAN])], torch.tensor(NAN), torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]))
case("an output added twice", lambda fd, o, x: [y := o.neg(x), y], [X], -X, -X)
for at in (0, -1):
    case(f"reductions of a scalar over axis {at}", lambda fd, o, x, at=at: [o.sum(s := o.select(x, fd.define_scalar(3), 0), at), o.max(s, [at]), o.min(s, [at], True), o.prod(s, [at])], [X[0]], *[X[0, 3]] * 4)
    case(f"moments of a scalar over axis {at}", lambda fd, o, x, at=at: [o.var(s := o.sum(x, [0]), [at]), *o.var_mean(s, [at], 0, True), *o.welford(s, [at])], [X[0]], *map(torch.tensor, (NAN, 0.0, 6.0, 6.0, 0.0, 1)))
case("the number of true scalars", lambda fd, o, x: [o.sum(s := o.gt(o.sum(x, [0]), 1.0), [0]), o.sum(s, [0], False, D.Float)], [X[0]], torch.tensor(1), torch.tensor(1.0))
N = torch.arange(-12, 12, dtype=torch.int32).reshape(8, 3)
case("minima of three negated integers", lambda fd, o, x: [o.min(o.neg(o.add(x, x)), [1]), o.max(o.neg(x), [1]), o.neg(x)], [N], (-2 * N).amin(1), (-N).amax(1), -N)
case("the smallest integer is its own negative", lambda fd, o, x: [o.neg(x)], [ints(-(2**31), 2**31 - 1, dtype=torch.int32)], ints(-(2**31), 1 - 2**31, dtype=torch.int32))
case("ints stand for truths", lambda fd, o, x: [o.sum(x, dims=[1], keepdim=1), o.slice(x, start_indices=(0, 1), end_indices=(3, 3), strides=(1, 1), manual_normalization=0), o.add(o.broadcast(x, [1, 0, 0]), x)], [X], X.sum(1, keepdim=True), X[:, 1:3], (X + X)[None])
# fmt: on


def test_ints_stand_for_truths_in_declarations() -> None:
    """But not in contiguities: two lists of ints are sizes and strides."""

    def define(fd: Any) -> None:
        a = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], is_cpu=0)
        b = fd.define_tensor(sizes=[3, 4], strides=[4, 1], static_sizes=1)
        c = fd.define_tensor([3, 4], [4, 1])
        fd.add_output(fd.ops.add(fd.ops.add(a, b), c))

    x = X.to(DEVICE)
    assert torch.equal(run(define, [x, x, x], is_new=None)[0].cpu(), 3 * X)


@pytest.mark.parametrize("name", CASES)
def test_corner(name: str) -> None:
    build, inputs, expected = CASES[name]

    def define(fd: Any) -> None:
        declared = [fd.from_pytorch(v.to(DEVICE)) if isinstance(v, torch.Tensor) else fd.define_scalar(D.Int) for v in inputs]
        for out in build(fd, fd.ops, *declared):
            fd.add_output(out)

    outputs = run(define, [v.to(DEVICE) if isinstance(v, torch.Tensor) else v for v in inputs], is_new=None)
    assert len(outputs) == len(expected)
    for out, wanted in zip(outputs, expected):
        assert out.dtype is wanted.dtype and out.shape == wanted.shape
        assert torch.equal(torch.nan_to_num(out.cpu().double(), 7.25), torch.nan_to_num(wanted.double(), 7.25)), (out, wanted)


def test_zeros_keep_their_sign_where_tensors_are_put_together() -> None:
    a, b = torch.tensor([-0.0, 0.0], device=DEVICE), torch.tensor([1.0, -0.0], device=DEVICE)
    (out,) = run(lambda fd: fd.add_output(fd.ops.cat([fd.from_pytorch(a), fd.from_pytorch(b)], 0)), [a, b], is_new=None)
    assert torch.signbit(out).tolist() == [True, False, False, True]


def test_an_axis_is_expanded_to_its_own_size_only() -> None:
    def define(fd: Any) -> None:
        x, n = fd.from_pytorch(X.to(DEVICE)), fd.define_scalar(D.Int)
        fd.add_output(fd.ops.neg(fd.ops.expand(x, [n, 4])))

    assert torch.equal(run(define, [X.to(DEVICE), 3], is_new=None)[0].cpu(), -X)
    with pytest.raises(RuntimeError, match="Tried to bind to a value: 3 as 5"):
        run(define, [X.to(DEVICE), 5], is_new=None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e9, -2.75, 2.0**62])
@pytest.mark.parametrize("kind", [D.Int, D.Int32])
def test_a_scalar_becomes_an_integer_as_an_element_does(value: float, kind: D) -> None:
    """On the host, at a first and at a warm call, and as the fill of a new tensor, given or constant."""
    given = torch.tensor([value], dtype=torch.float64, device=DEVICE)

    def define(fd: Any) -> None:
        x, s = fd.define_tensor([1], dtype=D.Double), fd.define_scalar(D.Double)
        fd.add_output(fd.ops.cast(x, dtype=kind))
        fd.add_output(fd.ops.where(fd.ops.eq(fd.ops.iota(1), 0), fd.ops.cast(s, dtype=kind), 7))
        fd.add_output(fd.ops.full([1], s, kind))
        fd.add_output(fd.ops.full([1], value, kind))

    for _ in range(2):
        element, *others = run(define, [given, value], is_new=None)
        assert [int(out) for out in others] == [int(element)] * 3


def test_a_complex_scalar_becomes_its_real_part() -> None:
    def define(fd: Any) -> None:
        s = fd.define_scalar(D.ComplexDouble)
        fd.add_output(fd.ops.full([2], s, D.Float))
        fd.add_output(fd.ops.full([2], 3 + 1j, D.Float))
        fd.add_output(fd.ops.full([2], fd.ops.cast(s, dtype=D.Double), D.Double))

    assert [out.tolist() for out in run(define, [2.5 - 1j], is_new=None)] == [[2.5, 2.5], [3.0, 3.0], [2.5, 2.5]]


@pytest.mark.parametrize("kind", [D.Float, D.Double, D.Half, D.BFloat16])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_uniform_range_may_run_downwards(kind: D, is_open: bool) -> None:
    def define(fd: Any) -> None:
        low, high = (fd.define_scalar(D.Double), fd.define_scalar(D.Double)) if is_open else (2.0, -1.0)
        fd.add_output(fd.ops.uniform(low, high, [1000], rng_seed=5, rng_offset=0, dtype=kind))

    (out,) = run(define, [2.0, -1.0] if is_open else [], is_new=None)
    numbers = out.cpu().double()
    assert -1 < float(numbers.min()) < -0.9 and 1.9 < float(numbers.max()) <= 2 and abs(float(numbers.mean()) - 0.5) < 0.1
