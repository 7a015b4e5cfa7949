"""Definitions of every kind that programs for nvFuser write, against torch: once through the cache, once through their own text.

Owns one line per capability; a line's name is the claim. Read first: `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixture import DEVICE, compile_for_gpu, defined, defined_again, run, same

from weft import DataType as D
from weft import FusionDefinition

Make = Callable[[], list[Any]]
Define = Callable[[FusionDefinition], Any]
Reference = Callable[..., Any]
CASES: dict[str, tuple[Define, Make, Reference]] = {}


def case(make: Make, reference: Reference) -> Callable[[Define], Define]:
    def add(define: Define) -> Define:
        assert define.__name__ not in CASES
        CASES[define.__name__] = (define, make, reference)
        return define

    return add


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64, device=DEVICE).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 9, shape, device=DEVICE).to(dtype)


def outputs(fd: FusionDefinition, *values: Any) -> None:
    for value in values:
        fd.add_output(value)


@pytest.mark.parametrize("name", CASES_NAMES := [])
def test_definition(name: str) -> None:
    define, make, reference = CASES[name]
    torch.manual_seed(1)
    inputs = make()
    expected = reference(*[i.clone() if isinstance(i, torch.Tensor) else i for i in inputs])
    expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    got = run(define, inputs)
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        same(g, e)


# ---------------------------------------------------------------- types, scalars, factories
@case(lambda: [rand(4, 5)], lambda x: torch.where(x > 0, 1.0, 2.0).double())
def where_of_python_doubles_is_double(fd):
    x = fd.from_pytorch(rand(4, 5))
    fd.add_output(fd.ops.where(fd.ops.gt(x, 0.0), 1.0, 2.0))


@case(lambda: [rand(4, 5)], lambda x: torch.where(x > 0, 1, 2))
def where_of_python_ints_is_int(fd):
    x = fd.from_pytorch(rand(4, 5))
    fd.add_output(fd.ops.where(fd.ops.gt(x, 0.0), 1, 2))


@case(lambda: [rand(4, 5)], lambda x: x > 0)
def where_of_python_bools_is_bool(fd):
    x = fd.from_pytorch(rand(4, 5))
    fd.add_output(fd.ops.where(fd.ops.gt(x, 0.0), True, False))


@case(lambda: [rand(4, 5), 2.5, 3], lambda x, a, b: [torch.where(x > 0, a, b).double(), torch.where(x > 0, x.half(), 1.0), torch.where(x > 0, b, b)])
def where_of_declared_scalars(fd):
    x = fd.from_pytorch(rand(4, 5))
    a, b = fd.define_scalar(D.Double), fd.define_scalar(D.Int)
    c = fd.ops.gt(x, 0.0)
    outputs(fd, fd.ops.where(c, a, b), fd.ops.where(c, fd.ops.cast(x, D.Half), 1.0), fd.ops.where(c, b, b))


@case(lambda: [torch.tensor(2.5), rand(3, 4)], lambda c, x: x + c)
def full_of_a_cpu_scalar(fd):
    c = fd.define_tensor([], [], dtype=D.Float, is_cpu=True)
    x = fd.from_pytorch(rand(3, 4))
    f = fd.ops.full([3, 4], fd.define_scalar(1.0), D.Float)
    fd.add_output(fd.ops.add(fd.ops.mul(f, c), x))


@case(lambda: [2.5], lambda s: torch.full((2, 3), s, dtype=torch.float32, device=DEVICE))
def full_of_a_scalar_input(fd):
    s = fd.define_scalar(D.Double)
    fd.add_output(fd.ops.full([2, 3], s, D.Float))


@case(lambda: [3, 4], lambda m, n: torch.full((m, n), m, device=DEVICE))
def full_of_symbolic_sizes(fd):
    n = fd.define_vector(2)
    fd.add_output(fd.ops.full(n, n[0], D.Int))


@case(lambda: [torch.tensor(2.0), torch.tensor(3.0), rand(3)], lambda a, b, x: [a, x + b, x * a])
def cpu_scalars_pass_through(fd):
    a, b = (fd.define_tensor([], [], dtype=D.Float, is_cpu=True) for _ in range(2))
    x = fd.from_pytorch(rand(3))
    outputs(fd, a, fd.ops.add(x, b), fd.ops.mul(x, a))


@case(lambda: [torch.tensor(2.0, device=DEVICE)], lambda x: [x, x.relu(), x + 1])
def scalar_tensors(fd):
    x = fd.define_tensor([], [])
    outputs(fd, x, fd.ops.relu(x), fd.ops.add(x, 1.0))


@case(lambda: [rand(4, 3), rand(4, 3)], lambda x, y: [x.sum(), (x * y).amax(), (x * x).sum().sqrt()])
def outputs_without_axes(fd):
    x, y = (fd.from_pytorch(rand(4, 3)) for _ in range(2))
    outputs(fd, fd.ops.sum(x), fd.ops.max(fd.ops.mul(x, y)), fd.ops.sqrt(fd.ops.sum(fd.ops.mul(x, x), [0, 1])))


@case(lambda: [rand(4, 3), rand(5, 6)], lambda x, y: [x.sum(0), x.prod(1), y.sum(1) + 1])
def folds_over_different_axes(fd):
    x, y = fd.from_pytorch(rand(4, 3)), fd.from_pytorch(rand(5, 6))
    outputs(fd, fd.ops.sum(x, [0]), fd.ops.prod(x, [1]), fd.ops.add(fd.ops.sum(y, [1]), 1.0))


@case(lambda: [rand(5, 6), rand(6)], lambda x, w: [(x * w).sum(1), (x * w).amax(0), (x * w).sum()])
def three_folds_of_one_product(fd):
    x, w = fd.from_pytorch(rand(5, 6)), fd.from_pytorch(rand(6))
    y = fd.ops.mul(x, fd.ops.broadcast_in_dim(w, [5, 6], [1]))
    outputs(fd, fd.ops.sum(y, [1]), fd.ops.max(y, [0]), fd.ops.sum(y))


@case(lambda: [], lambda: [torch.arange(0, 12, 3, device=DEVICE), torch.arange(5.0, 3.0, -0.5, device=DEVICE), torch.arange(7, device=DEVICE, dtype=torch.int32)])
def iotas(fd):
    outputs(fd, fd.ops.iota(4, 0, 3), fd.ops.iota(4, 5.0, -0.5, D.Float), fd.ops.iota(7, dtype=D.Int32))


@pytest.mark.parametrize("kind", [D.Half, D.BFloat16, D.Float, D.Double])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (3.0, 3.0078125), (-1.0, 0.1)])
def test_uniform_numbers_stay_below_their_upper_bound(kind, low, high):
    """Also where rounding a number to the type of the result would make it the bound: of 200,000 numbers hundreds would be."""
    with FusionDefinition() as fd:
        seed, offset = fd.define_scalar(1), fd.define_scalar(0)
        fd.add_output(fd.ops.uniform(low, high, [200_000], rng_seed=seed, rng_offset=offset, dtype=kind))
    x = fd.execute([])[0].double()
    rounded_low = torch.tensor(low).to({D.Half: torch.float16, D.BFloat16: torch.bfloat16}.get(kind, torch.float64)).item()
    assert rounded_low <= x.min() and x.max() < high


@case(lambda: [5, 2, 3], lambda n, a, b: torch.arange(n, device=DEVICE) * b + a)
def iota_of_scalar_inputs(fd):
    n, a, b = (fd.define_scalar(D.Int) for _ in range(3))
    fd.add_output(fd.ops.iota(n, a, b))


@case(lambda: [rand(5, dtype=torch.complex64), rand(5, dtype=torch.complex128)], lambda a, b: [a * b, a.abs() + b.real, torch.complex(b.imag, b.real)])
def complex_arithmetic(fd):
    a, b = fd.define_tensor([5], dtype=D.ComplexFloat), fd.define_tensor([5], dtype=D.ComplexDouble)
    outputs(fd, fd.ops.mul(a, b), fd.ops.add(fd.ops.abs(a), fd.ops.real(b)), fd.ops.complex(fd.ops.imag(b), fd.ops.real(b)))


@pytest.mark.parametrize("kind", ["complex64", "complex128"])
def test_complex_views_and_folds(kind):
    dtype = getattr(torch, kind)
    x = rand(3, 1, 4, dtype=dtype)

    def define(fd):
        t = fd.define_tensor([-1, 1, -1], contiguity=True, dtype=D.ComplexFloat if kind == "complex64" else D.ComplexDouble)
        p = fd.ops.permute(t, [2, 1, 0])
        s = fd.ops.squeeze(t, [1])
        b = fd.ops.broadcast(s, [True, False, False])
        e = fd.ops.expand(t, [-1, 5, -1])
        outputs(fd, p, s, b, fd.ops.add(e, 1.0), fd.ops.sum(s, [1]), fd.ops.prod(s, [0]), fd.ops.mul(p, 2.0), fd.ops.reshape(fd.ops.neg(s), [12]))

    s = x.squeeze(1)
    expected = [x.permute(2, 1, 0), s, s[None], x.expand(3, 5, 4) + 1.0, s.sum(1), s.prod(0), x.permute(2, 1, 0) * 2, -s.reshape(12)]
    for got, want in zip(run(define, [x]), expected, strict=True):
        same(got, want)
    fd = defined(define)
    fd.execute([x])
    compile_for_gpu(fd, [x])


@case(lambda: [rand(6, 5, dtype=torch.complex64)], lambda x: [torch.view_as_real(x).double().var(0, correction=1).sum(-1).float(), x.mean(0)])
def complex_var_mean(fd):
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=D.ComplexFloat)
    outputs(fd, *fd.ops.var_mean(x, [0], correction=1))


@case(
    lambda: [torch.tensor([7, -7, 8, -9, 5], device=DEVICE), torch.tensor([2, 2, -3, 4, -5], device=DEVICE)],
    lambda a, b: [torch.div(a, b, rounding_mode="trunc"), a / b, torch.remainder(a, b), torch.fmod(a, b), torch.fmod(a, b)],
)
def divisions_of_integers(fd):
    a, b = (fd.define_tensor([-1], contiguity=True, dtype=D.Int) for _ in range(2))
    outputs(fd, fd.ops.div(a, b), fd.ops.truediv(a, b), fd.ops.remainder(a, b), fd.ops.fmod(a, b), fd.ops.mod(a, b))


@case(lambda: [rand(4, dtype=torch.float16), rand(4, dtype=torch.bfloat16)], lambda a, b: [a.float() + b.float(), a.float() * 2, a.float().exp(), torch.maximum(b.float(), a.float())])
def arithmetic_of_halves_is_float(fd):
    a, b = fd.define_tensor([4], dtype=D.Half), fd.define_tensor([4], dtype=D.BFloat16)
    outputs(fd, fd.ops.add(a, b), fd.ops.mul(a, 2.0), fd.ops.exp(a), fd.ops.maximum(b, a))


@case(lambda: [rand(4, dtype=torch.int32), rand(4, dtype=torch.bool)], lambda a, b: [a + b, a * 1.5, a.exp(), a.sum(), b.sum(), b.prod(), a / 2, a & 3, b | True, ~b, ~a])
def arithmetic_of_integers(fd):
    a, b = fd.define_tensor([4], dtype=D.Int32), fd.define_tensor([4], dtype=D.Bool)
    o = fd.ops
    outputs(fd, o.add(a, b), o.mul(a, 1.5), o.exp(a), o.sum(a), o.sum(b), o.prod(b), o.truediv(a, 2), o.bitwise_and(a, 3), o.bitwise_or(b, True), o.bitwise_not(b), o.bitwise_not(a))


@case(lambda: [rand(4), rand(4, dtype=torch.float64)], lambda a, b: [torch.nextafter(a, a + 1), torch.nextafter(a.double(), b)])
def nextafter(fd):
    a, b = fd.define_tensor([4]), fd.define_tensor([4], dtype=D.Double)
    outputs(fd, fd.ops.nextafter(a, fd.ops.add(a, 1.0)), fd.ops.nextafter(a, b))


@case(lambda: [rand(4, 6)], lambda x: [x.to(t) for t in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.complex64)])
def casts(fd):
    x = fd.from_pytorch(rand(4, 6))
    outputs(fd, *[fd.ops.cast(x, t) for t in (D.Double, D.Half, D.BFloat16, D.Int, D.Int32, D.Bool, D.ComplexFloat)])


@case(lambda: [rand(4, 6)], lambda x: [x.to(torch.float8_e4m3fn).float(), x.to(torch.float8_e5m2).half()])
def casts_to_float8_and_back(fd):
    x = fd.from_pytorch(rand(4, 6))
    outputs(fd, fd.ops.cast(fd.ops.cast(x, D.Float8_e4m3fn), D.Float), fd.ops.cast(fd.ops.cast(x, D.Float8_e5m2), D.Half))


@case(lambda: [rand(4, 4)], lambda x: [x.triu(), x.triu(1), x.triu(-2)])
def triangles(fd):
    x = fd.from_pytorch(rand(4, 4))
    outputs(fd, fd.ops.triu(x), fd.ops.triu(x, 1), fd.ops.triu(x, -2))


@case(lambda: [rand(3, 4), 0.25], lambda x, w: [torch.lerp(x, x * 2, w), x.clamp(-0.5, 0.5), torch.nn.functional.threshold(x, 0.1, 9.0), torch.addcmul(x, x, x, value=w)])
def ops_of_three_operands(fd):
    x, w = fd.from_pytorch(rand(3, 4)), fd.define_scalar(D.Double)
    outputs(fd, fd.ops.lerp(x, fd.ops.mul(x, 2.0), w), fd.ops.clamp(x, -0.5, 0.5), fd.ops.threshold(x, 0.1, 9.0), fd.ops.addcmul(x, x, x, w))


# ---------------------------------------------------------------- views
@case(lambda: [rand(2, 3, 4)], lambda x: [x.reshape(6, 4), x.reshape(2, 12).exp(), x.reshape(24), x.reshape(1, 24, 1)])
def reshapes(fd):
    x = fd.from_pytorch(rand(2, 3, 4))
    outputs(fd, fd.ops.reshape(x, [6, 4]), fd.ops.exp(fd.ops.reshape(x, [2, 12])), fd.ops.reshape(x, [-1]), fd.ops.reshape(x, [1, 24, 1]))


@case(lambda: [rand(4, 6), rand(2)], lambda x, y: x.reshape(2, 12) + y.reshape(2, 1))
def reshape_by_the_size_of_another_tensor(fd):
    x, y = fd.from_pytorch(rand(4, 6)), fd.from_pytorch(rand(2))
    n = y.size(0)
    fd.add_output(fd.ops.add(fd.ops.reshape(x, [n, fd.ops.div(fd.ops.mul(x.size(0), x.size(1)), n)]), fd.ops.broadcast(y, [False, True])))


@case(lambda: [rand(0, 6)], lambda x: [x.reshape(0, 2, 3), x.reshape(3, 0) + 1])
def reshapes_of_nothing(fd):
    x = fd.from_pytorch(rand(0, 6))
    outputs(fd, fd.ops.reshape(x, [0, 2, 3]), fd.ops.add(fd.ops.reshape(x, [3, 0]), 1.0))


@case(lambda: [rand(1, 6, 1)], lambda x: [x.reshape(6), x.reshape(2, 1, 3), x.squeeze(0), x.squeeze(), x.expand(4, 6, 5)])
def ones_come_and_go(fd):
    x = fd.from_pytorch(rand(1, 6, 1))
    outputs(fd, fd.ops.reshape(x, [6]), fd.ops.reshape(x, [2, 1, 3]), fd.ops.squeeze(x, [0]), fd.ops.squeeze(x, [0, 2]), fd.ops.expand(x, [4, -1, 5]))


@case(lambda: [rand(1, 4)], lambda x: [x.expand(3, 4).reshape(12), x.expand(3, 4).sum(0), x.expand(3, 4).prod(0), x.expand(3, 4).amax(0)])
def expanded_axes(fd):
    x = fd.from_pytorch(rand(1, 4))
    e = fd.ops.expand(x, [3, 4])
    outputs(fd, fd.ops.reshape(e, [12]), fd.ops.sum(e, [0]), fd.ops.prod(e, [0]), fd.ops.max(e, [0]))


@case(lambda: [rand(5, 8)], lambda x: [x[1:4, 2:8], x[:, 3:4], x[-2:], x[0:99, 5:3]])
def slices(fd):
    x = fd.from_pytorch(rand(5, 8))
    n = x.size(0)
    outputs(
        fd, fd.ops.slice(x, [1, 2], [4, 8]), fd.ops.slice(x, start_indices=[0, 3], end_indices=[5, 4], strides=[1, 1]),
        fd.ops.slice(x, [fd.ops.sub(n, 2), 0], [n, 8]), fd.ops.slice(x, [0, 5], [99, 5]),
    )


@case(lambda: [rand(3, 4)], lambda x: [torch.nn.functional.pad(x, p, value=v) for p, v in (([1, 2], 0.0), ([1, -1, 2, 0], 2.0), ([-1, -1], 0.0))])
def pads(fd):
    x = fd.from_pytorch(rand(3, 4))
    outputs(fd, fd.ops.pad(x, [1, 2]), fd.ops.pad(x, [1, -1, 2, 0], 2.0), fd.ops.pad(x, [-1, -1]))


@case(lambda: [rand(3, 4), rand(3, 2)], lambda x, y: [torch.cat([x, y], 1), torch.cat([x, x * 2], 0), torch.cat([x, y, y], -1).sum(1)])
def cats(fd):
    x, y = fd.from_pytorch(rand(3, 4)), fd.from_pytorch(rand(3, 2))
    outputs(fd, fd.ops.cat([x, y], 1), fd.ops.cat([x, fd.ops.mul(x, 2.0)]), fd.ops.sum(fd.ops.cat([x, y, y], -1), [1]))


@case(lambda: [rand(2, 5, 8)], lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1) * 2 + x)
def rotated_halves(fd):
    x = fd.from_pytorch(rand(2, 5, 8))
    a, b = fd.ops.slice(x, [0, 0, 0], [2, 5, 4]), fd.ops.slice(x, [0, 0, 4], [2, 5, 8])
    fd.add_output(fd.ops.add(fd.ops.mul(fd.ops.cat([fd.ops.neg(b), a], -1), 2.0), x))


@case(lambda: [rand(2, 3, 4, 5)], lambda x: [x.permute(3, 1, 0, 2), (x + 1).permute(0, 2, 1, 3).reshape(2, 4, 15)])
def permutes(fd):
    x = fd.from_pytorch(rand(2, 3, 4, 5))
    outputs(fd, fd.ops.permute(x, [3, -3, 0, 2]), fd.ops.reshape(fd.ops.permute(fd.ops.add(x, 1.0), [0, 2, 1, 3]), [2, 4, 15]))


@case(lambda: [rand(4), rand(3, 4)], lambda w, x: [w.expand(2, 3, 4) + x, w[None].expand(3, 4) * x])
def broadcasts_in_dim(fd):
    w, x = fd.from_pytorch(rand(4)), fd.from_pytorch(rand(3, 4))
    outputs(fd, fd.ops.add(fd.ops.broadcast_in_dim(w, [2, 3, 4], [-1]), x), fd.ops.mul(fd.ops.broadcast_in_dim(w, x.shape(), [1]), x))


@case(lambda: [rand(3, 4), 5], lambda x, n: x[:, None].expand(3, n, 4).exp())
def broadcast_to_a_scalar_input(fd):
    x, n = fd.from_pytorch(rand(3, 4)), fd.define_scalar(D.Int)
    fd.add_output(fd.ops.exp(fd.ops.broadcast_in_dim(x, [3, n, 4], [0, 2])))


@case(lambda: [rand(2, 3, 4)], lambda x: [x.exp().permute(2, 0, 1).contiguous().permute(1, 2, 0), x.sum(0).t().contiguous().t()])
def stride_orders(fd):
    x = fd.from_pytorch(rand(2, 3, 4))
    outputs(fd, fd.ops.stride_order(fd.ops.exp(x), [1, 0, 2]), fd.ops.stride_order(fd.ops.sum(x, [0]), [0, 1]))


# ---------------------------------------------------------------- index ops
@case(lambda: [rand(5, 6), torch.randint(0, 5, (3,), device=DEVICE)], lambda x, i: [x[i], x.index_select(1, i), x[i].sum(1), x[i].exp() * 2])
def index_selects(fd):
    x, i = fd.from_pytorch(rand(5, 6)), fd.define_tensor([-1], contiguity=True, dtype=D.Int)
    y = fd.ops.index_select(x, i, 0)
    outputs(fd, y, fd.ops.index_select(x, i, 1), fd.ops.sum(y, [1]), fd.ops.mul(fd.ops.exp(y), 2.0))


@case(lambda: [rand(5, 6), torch.randint(0, 5, (3, 2), device=DEVICE)], lambda x, i: [x.gather(0, i), x.gather(1, i) + 1, (x * 2).gather(1, i).sum(0)])
def gathers(fd):
    x, i = fd.from_pytorch(rand(5, 6)), fd.define_tensor([-1, -1], contiguity=True, dtype=D.Int)
    outputs(fd, fd.ops.gather(x, i, 0), fd.ops.add(fd.ops.gather(x, i, -1), 1.0), fd.ops.sum(fd.ops.gather(fd.ops.mul(x, 2.0), i, 1), [0]))


@case(lambda: [rand(5, 6), torch.randint(0, 5, (5, 1), device=DEVICE)], lambda x, i: [torch.take_along_dim(x, i, 1), torch.take_along_dim(x.exp(), i, 1).sum()])
def takes_along_an_axis(fd):
    x, i = fd.from_pytorch(rand(5, 6)), fd.define_tensor([-1, 1], contiguity=[True, None], dtype=D.Int)
    outputs(fd, fd.ops.take_along_axis(x, i, 1), fd.ops.sum(fd.ops.take_along_axis(fd.ops.exp(x), i, 1)))


@case(lambda: [rand(5, 6), torch.tensor([3, -100, 0, 5, -100], device=DEVICE)], lambda x, t: [x.gather(1, t.clamp(min=0)[:, None])])
def takes_at_integers_that_where_made_floats(fd):
    """nvFuser takes the Float that `where` makes of an Int and a float scalar as an index; lightning-thunder's cross entropy has one."""
    x, t = fd.from_pytorch(rand(5, 6)), fd.define_tensor([-1], contiguity=True, dtype=D.Int)
    index = fd.ops.where(fd.ops.ne(t, -100), t, fd.define_scalar(0.0, dtype=D.Float))
    outputs(fd, fd.ops.take_along_axis(x, fd.ops.broadcast_in_dim(index, shape=[t.size(0), 1], broadcast_dims=[0]), 1))


@case(lambda: [rand(5, 6), 2], lambda x, i: [x.select(0, i), x.select(1, 3) * 2])
def selects(fd):
    x, i = fd.from_pytorch(rand(5, 6)), fd.define_scalar(D.Int)
    outputs(fd, fd.ops.select(x, i, 0), fd.ops.mul(fd.ops.select(x, fd.define_scalar(3), 1), 2.0))


@case(
    lambda: [rand(5, 6), torch.stack([torch.randperm(5, device=DEVICE)[:2] for _ in range(6)], 1), rand(2, 6)],
    lambda x, i, s: [x.scatter(0, i, s), x.scatter(0, i, 7.0), (x * 2).scatter(0, i, s + 1) * 3],
)
def scatters(fd):
    x, i, s = fd.from_pytorch(rand(5, 6)), fd.define_tensor([-1, -1], contiguity=True, dtype=D.Int), fd.from_pytorch(rand(2, 6))
    o = fd.ops
    outputs(fd, o.scatter(x, i, s, 0), o.scatter(x, i, 7.0, 0), o.mul(o.scatter(o.mul(x, 2.0), i, o.add(s, 1.0), 0), 3.0))


@case(lambda: [rand(4, 9)], lambda x: [x.cumsum(1), x.cumprod(0), x.cummax(1)[0], x.cummin(-2)[0], x.cumsum(1) + 3])
def running_folds(fd):
    x = fd.from_pytorch(rand(4, 9))
    o = fd.ops
    outputs(fd, o.cumsum(x, 1), o.cumprod(x, 0), o.cummax(x, 1), o.cummin(x, -2), o.add(o.cumsum(x, 1), 3.0))


@case(lambda: [rand(4, 9)], lambda x: [*x.topk(3, -1), *x.topk(2, 0, largest=False), x.argsort(1, descending=True), (x * 2).topk(1)[0].exp()])
def largest_and_sorted(fd):
    x = fd.from_pytorch(rand(4, 9))
    outputs(fd, *fd.ops.topk(x, fd.define_scalar(3), -1, True, True), *fd.ops.topk(x, fd.define_scalar(2), 0, False, True))
    fd.add_output(fd.ops.argsort(x, 1, True, True))
    fd.add_output(fd.ops.exp(fd.ops.topk(fd.ops.mul(x, 2.0), 1)[0]))


@case(lambda: [torch.randint(0, 7, (2, 3), device=DEVICE), rand(7, 4)], lambda i, w: [w[i], (w[i] * 2).sum(-1)])
def embeddings(fd):
    i, w = fd.define_tensor([-1, -1], contiguity=True, dtype=D.Int), fd.from_pytorch(rand(7, 4))
    e = fd.ops.embedding_fwd(i, w)
    outputs(fd, e, fd.ops.sum(fd.ops.mul(e, 2.0), [-1]))


@pytest.mark.parametrize("is_input", [False, True])
@pytest.mark.parametrize("padding, norm, kind", [(None, 0.1, None), (0, 0.1, 1.0), (0, None, None), (None, None, 1.0)])
def test_embedding_options_as_scalars(padding, norm, kind, is_input):
    """Options are scalars of the definition, constants or given at execution; a norm renormalizes rows of the table in place."""
    index, table = torch.randint(0, 9, (4, 3), device=DEVICE), rand(9, 8)
    given = []

    def option(fd, value, dtype):
        if value is None or not is_input:
            return None if value is None else fd.define_scalar(value, dtype)
        given.append(value)
        return fd.define_scalar(dtype)

    def define(fd):
        i, w = fd.define_tensor([-1, -1], contiguity=True, dtype=D.Int), fd.from_pytorch(table)
        options = [option(fd, padding, D.Int), option(fd, norm, D.Double), option(fd, kind, D.Double)]
        fd.add_output(fd.ops.embedding_fwd(i, w, *options, fd.define_scalar(True), fd.define_scalar(False)))

    fd = defined(define)
    expected = torch.nn.functional.embedding(index, table.clone(), padding, norm, 2.0 if kind is None else kind)
    for _ in range(2):
        same(fd.execute([index, table.clone(), *given])[0], expected)
    same(defined_again(fd).execute([index, table.clone(), *given])[0], expected)


@case(
    lambda: [rand(6, 10), torch.randint(0, 10, (6,), device=DEVICE)],
    lambda x, t: [torch.nn.functional.cross_entropy(x, t), x.softmax(1) - torch.nn.functional.one_hot(t, 10)],
)
def cross_entropy(fd):
    x, t = fd.from_pytorch(rand(6, 10)), fd.define_tensor([-1], contiguity=True, dtype=D.Int)
    o = fd.ops
    e = o.sub(x, o.broadcast(o.max(x, [1]), [False, True]))
    s = o.sum(o.exp(e), [1])
    picked = o.squeeze(o.take_along_axis(e, o.broadcast(t, [False, True]), 1), [1])
    fd.add_output(o.truediv(o.sum(o.sub(o.log(s), picked)), o.cast(x.size(0), D.Double)))
    hot = o.eq(o.broadcast_in_dim(o.iota(x.size(1), 0, 1), x.shape(), [1]), o.broadcast_in_dim(t, x.shape(), [0]))
    fd.add_output(o.sub(o.truediv(o.exp(e), o.broadcast(s, [False, True])), hot))


# ---------------------------------------------------------------- matmuls
@case(lambda: [rand(4, 5), rand(5, 6), rand(6)], lambda a, b, c: [a @ b, (a @ b + c).relu(), (a + 1) @ b])
def matmuls_between_kernels(fd):
    a, b, c = fd.from_pytorch(rand(4, 5)), fd.from_pytorch(rand(5, 6)), fd.from_pytorch(rand(6))
    o = fd.ops
    y = o.matmul(a, b)
    outputs(fd, y, o.relu(o.add(y, c)), o.matmul(o.add(a, 1.0), b))


@case(lambda: [rand(2, 4, 5), rand(6, 5), rand(6)], lambda x, w, b: [torch.nn.functional.linear(x, w, b), torch.nn.functional.linear(x, w).tanh()])
def linears(fd):
    x, w, b = fd.from_pytorch(rand(2, 4, 5)), fd.from_pytorch(rand(6, 5)), fd.from_pytorch(rand(6))
    outputs(fd, fd.ops.linear(x, w, b), fd.ops.tanh(fd.ops.linear(x, w)))


@case(lambda: [rand(5), rand(5), rand(3, 5)], lambda a, b, c: [a @ b, c @ a, (a @ b) * 2])
def products_of_vectors(fd):
    a, b, c = fd.from_pytorch(rand(5)), fd.from_pytorch(rand(5)), fd.from_pytorch(rand(3, 5))
    o = fd.ops
    outputs(fd, o.matmul(a, b), o.matmul(c, a), o.mul(o.matmul(a, b), 2.0))


@case(lambda: [rand(4, 1), rand(1, 6)], lambda a, b: [a @ b, (a @ b).exp()])
def matmul_over_one_element(fd):
    a, b = fd.from_pytorch(rand(4, 1)), fd.from_pytorch(rand(1, 6))
    y = fd.ops.matmul(a, b)
    outputs(fd, y, fd.ops.exp(y))


# ---------------------------------------------------------------- norms
@case(
    lambda: [rand(6, 32, dtype=torch.bfloat16), rand(32, dtype=torch.bfloat16), rand(32, dtype=torch.bfloat16)],
    lambda x, w, b: torch.nn.functional.layer_norm(x.float(), [32], w.float(), b.float()).bfloat16(),
)
def layer_norm(fd):
    x, w, b = fd.from_pytorch(rand(6, 32, dtype=torch.bfloat16)), *(fd.from_pytorch(rand(32, dtype=torch.bfloat16)) for _ in range(2))
    o = fd.ops
    x32 = o.cast(x, D.Float)
    var, mean = o.var_mean(x32, [1], correction=0, keepdim=True)
    y = o.mul(o.sub(x32, o.broadcast_in_dim(mean, [6, 32], [0, 1])), o.broadcast_in_dim(o.rsqrt(o.add(var, 1e-5)), [6, 32], [0, 1]))
    y = o.add(o.mul(y, o.broadcast_in_dim(w, [6, 32], [1])), o.broadcast_in_dim(b, [6, 32], [1]))
    fd.add_output(o.cast(y, D.BFloat16))


@case(lambda: [rand(2, 6, 5, 3)], lambda x: torch.nn.functional.group_norm(x, 3))
def group_norm(fd):
    x = fd.from_pytorch(rand(2, 6, 5, 3))
    o = fd.ops
    y = o.reshape(x, [x.size(0), 3, 2, x.size(2), x.size(3)])
    var, mean = o.var_mean(y, [2, 3, 4], correction=0, keepdim=True)
    z = o.mul(o.sub(y, mean), o.rsqrt(o.add(var, 1e-5)))
    fd.add_output(o.reshape(z, x.shape()))


@case(lambda: [rand(8, 6)], lambda x: [x.var(0), x.var(1, correction=0, keepdim=True), *reversed(torch.var_mean(x, [0, 1]))])
def variances(fd):
    x = fd.from_pytorch(rand(8, 6))
    var, mean = fd.ops.var_mean(x, [0, 1])
    outputs(fd, fd.ops.var(x, [0]), fd.ops.var(x, [1], 0, True), mean, var)


@case(lambda: [rand(8, 6)], lambda x: [x.mean(1), ((x - x.mean(1, keepdim=True)) ** 2).sum(1)])
def welford(fd):
    x = fd.from_pytorch(rand(8, 6))
    outputs(fd, *fd.ops.welford(x, [1])[:2])


@case(lambda: [rand(8, 6)], lambda x: [x.mean(1), ((x - x.mean(1, keepdim=True)) ** 2).sum(1), torch.full((8,), 6, device=DEVICE)])
def welford_with_its_count(fd):
    x = fd.from_pytorch(rand(8, 6))
    outputs(fd, *fd.ops.welford(x, [1]))


@case(lambda: [rand(4, 6)], lambda x: [x.softmax(1), x.softmax(0), x.log_softmax(1)])
def softmaxes(fd):
    x = fd.from_pytorch(rand(4, 6))
    o = fd.ops

    def softmax(dim):
        e = o.exp(o.sub(x, o.max(x, [dim], True)))
        return o.truediv(e, o.sum(e, [dim], True))

    d = o.sub(x, o.max(x, [1], True))
    outputs(fd, softmax(1), softmax(0), o.sub(d, o.log(o.sum(o.exp(d), [1], True))))


CASES_NAMES.extend(CASES)
