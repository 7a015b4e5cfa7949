"""Types of results beside torch's: every pair of types, numbers beside every type, folds; and what is no argument of an op raises a TypeError.

One definition holds all cases of a type, so that the emulator compiles few kernels. Read first: `test_pairs_of_types`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixture import DEVICE, run, same

from weft import DataType as D
from weft import FusionDefinition

TYPES = [torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
HALVES = (torch.float16, torch.bfloat16)
NUMBERS = (2, 2.0, True, 1 + 2j)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(TYPES.index(dtype))
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(DEVICE, dtype)
    return torch.randint(0 if dtype is torch.bool else -9, 2 if dtype is torch.bool else 9, shape).to(DEVICE, dtype)


def computed(x: torch.Tensor) -> torch.Tensor:
    """Halves are computed as float, and stay so."""
    return x.float() if x.dtype in HALVES else x


def outputs(fd: FusionDefinition, found: list[Any]) -> None:
    for value in found:
        fd.add_output(value)


@pytest.mark.parametrize("first", TYPES, ids=str)
def test_pairs_of_types(first: torch.dtype) -> None:
    inputs = [values(dtype, 6) for dtype in [first, *TYPES[TYPES.index(first) :]]]

    def define(fd: FusionDefinition) -> None:
        a, *others = [fd.from_pytorch(x) for x in inputs]
        outputs(fd, [made for b in others for made in (fd.ops.mul(a, b), fd.ops.eq(b, a))])

    expected = []
    for x in inputs[1:]:
        kind = torch.promote_types(first, x.dtype)
        kind = torch.float32 if kind in HALVES else kind
        expected += [inputs[0].to(kind) * x.to(kind), inputs[0].to(kind) == x.to(kind)]
    for got, want in zip(run(define, inputs), expected, strict=True):
        same(got, want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numbers_beside_a_type(dtype: torch.dtype) -> None:
    """Constants on both sides, and the same numbers given at execution."""
    x = values(dtype, 2, 3)

    def define(fd: FusionDefinition) -> None:
        t, given = fd.from_pytorch(x), [fd.define_scalar(kind) for kind in (D.Int, D.Double, D.Bool, D.ComplexDouble)]
        outputs(fd, [made for number in (*NUMBERS, *given) for made in (fd.ops.add(t, number), fd.ops.mul(number, t))])

    expected = [want for number in NUMBERS * 2 for want in (computed(x) + number, computed(x) * number)]
    for got, want in zip(run(define, [x, *NUMBERS]), expected, strict=True):
        same(got, want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_folds_of_a_type(dtype: torch.dtype) -> None:
    x = values(dtype, 3, 4)
    wide = [D.ComplexDouble] if dtype.is_complex else [D.Double, D.Int]

    def define(fd: FusionDefinition) -> None:
        t, o = fd.from_pytorch(x), fd.ops
        folds = [o.sum(t), o.sum(t, 1), o.sum(t, [-2], True), o.prod(t, dim=-1)] + [o.sum(t, dims=[0], keepdim=True, dtype=kind) for kind in wide]
        outputs(fd, folds + ([] if dtype.is_complex else [o.max(t, [0]), o.min(t, -1, True)]))

    y = computed(x)
    kinds = [torch.complex128] if dtype.is_complex else [torch.float64, torch.int64]
    expected = [y.sum(), y.sum(1), y.sum(0, keepdim=True), y.prod(-1), *[x.to(kind).sum(0, keepdim=True) for kind in kinds]]
    expected += [] if dtype.is_complex else [y.amax(0), y.amin(-1, keepdim=True)]
    for got, want in zip(run(define, [x]), expected, strict=True):
        same(got, want, atol=1e-4, rtol=1e-5)


def test_scans_of_truths_are_truths() -> None:
    """Whether any was true so far, or all were; also from a first value on."""
    x = values(torch.bool, 5, 7)

    def define(fd: FusionDefinition) -> None:
        t, o = fd.from_pytorch(x), fd.ops
        outputs(fd, [o.cumsum(t, 1), o.cumprod(t, 0), o.cummax(t, -1), o.cummin(t, 0), o.cumsum(t, 0, True), o.cumprod(t, 1, False), o.cumsum(o.logical_not(t), 0)])

    whole, true = x.long(), torch.ones_like(x)
    expected = [whole.cumsum(1) > 0, whole.cumprod(0) > 0, whole.cummax(-1)[0] > 0, whole.cummin(0)[0] > 0, true, ~true, (1 - whole).cumsum(0) > 0]
    for got, want in zip(run(define, [x]), expected, strict=True):
        same(got, want)


def test_bytes_are_scattered() -> None:
    """Floats of 8 bits have no arithmetic, and a scatter needs none."""
    x, source = (values(torch.float32, *shape).to(torch.float8_e4m3fn) for shape in ((6, 5), (2, 3)))
    index = torch.tensor([[0, 3, 5], [4, 1, 2]], device=DEVICE)

    def define(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.scatter(fd.from_pytorch(x), fd.from_pytorch(index), fd.from_pytorch(source), 0))

    same(run(define, [x, index, source])[0].view(torch.uint8), x.view(torch.uint8).scatter(0, index, source.view(torch.uint8)))


NARROW_ONES: dict[str, Callable[[Any, Any], Any]] = {
    "cumsum": lambda o, t: o.cumsum(t, 0),
    "cummin": lambda o, t: o.cummin(t, 0, 1.0),
    "argsort": lambda o, t: o.argsort(t, 0),
    "topk": lambda o, t: o.topk(t, 1),
    "scatter_add": lambda o, t: o.scatter_add(t, o.cast(o.cast(t, D.Float), D.Int), t, 0),
    "a complex number": lambda o, t: o.full([2], 1 + 2j, t.dtype()),
}


@pytest.mark.parametrize("name", NARROW_ONES)
@pytest.mark.parametrize("kind", [D.Float8_e4m3fn, D.Float8_e5m2, D.Float4_e2m1fn])
def test_floats_without_arithmetic_are_refused_when_they_are_defined(name: str, kind: D) -> None:
    with FusionDefinition() as fd, pytest.raises(RuntimeError, match="W303|W860"):
        NARROW_ONES[name](fd.ops, fd.define_tensor([-1, -1], dtype=kind))


NO_ARGUMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "dims that are no integers": lambda o, t: o.var_mean(t, [1.5]),
    "dims as text": lambda o, t: o.var_mean(t, "a"),
    "a correction as text": lambda o, t: o.var_mean(t, [0], "a"),
    "a variance of a number": lambda o, t: o.var_mean(1.0, [0]),
    "a variance over nothing named": lambda o, t: o.var_mean(t),
    "one axis for an order": lambda o, t: o.permute(t, 0),
    "an order of fractions": lambda o, t: o.permute(t, [0.5, 1]),
    "an order of a number": lambda o, t: o.permute(2.0, [0]),
    "a running sum along a fraction": lambda o, t: o.cumsum(t, 1.5),
    "a running sum along no axis": lambda o, t: o.cumsum(t),
    "a running sum along several axes": lambda o, t: o.cumsum(t, [0]),
    "a list for an operand": lambda o, t: o.add(t, [1]),
    "a tensor of torch": lambda o, t: o.add(t, torch.ones(2)),
    "two operands for one": lambda o, t: o.relu(t, t),
    "a type as text": lambda o, t: o.cast(t, "float"),
    "one size for a shape": lambda o, t: o.reshape(t, 4),
    "a slice without an end": lambda o, t: o.slice(t, [0, 0]),
    "one axis to squeeze": lambda o, t: o.squeeze(t, 0),
    "a cat of one tensor": lambda o, t: o.cat(t, 0),
    "a sum over a fraction": lambda o, t: o.sum(t, 1.5),
    "one flag for a broadcast": lambda o, t: o.broadcast(t, 1),
    "no number of values": lambda o, t: o.topk(t),
    "no axis to sort": lambda o, t: o.argsort(t),
    "two operands of where": lambda o, t: o.where(t, t),
    "a product with a number": lambda o, t: o.matmul(t, 2.0),
    "widths as text": lambda o, t: o.pad(t, "a"),
    "no length": lambda o, t: o.iota(),
}


@pytest.mark.parametrize("name", NO_ARGUMENTS)
def test_what_is_no_argument_is_a_type_error(name: str) -> None:
    with FusionDefinition() as fd, pytest.raises(TypeError):
        NO_ARGUMENTS[name](fd.ops, fd.define_tensor([-1, -1]))
