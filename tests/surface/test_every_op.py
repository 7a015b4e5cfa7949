"""Every unary and binary op, every type that torch takes: torch's own numbers on the same device within 1e-3 absolute, and torch's type.

In the emulator one type of a kind and two ranks; on a GPU all.
Values: random, none, one, strided; small ones with zeros of both signs, large ones, infinities and NaN. All samples of a rank share a definition.
Read first: `samples`, `test_op`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fixture import DEVICE

from weft import DataType as D
from weft import FusionDefinition

KINDS = {
    torch.float32: D.Float, torch.float64: D.Double, torch.int32: D.Int32, torch.int64: D.Int, torch.complex64: D.ComplexFloat, torch.complex128: D.ComplexDouble,
}  # fmt: skip
TYPES = list(KINDS) if DEVICE == "cuda" else [torch.float32, torch.int32, torch.complex128]  # the emulator's compiler takes its time
UNARY: dict[str, Callable[[Any], Any]] = {name: getattr(torch, name) for name in (
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf isreal "
    "lgamma log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sigmoid sign signbit sin sinh sqrt tan tanh trunc"
).split()}  # fmt: skip
UNARY |= {"silu": torch.nn.functional.silu, "erfcinv": lambda x: torch.erfinv(1 - x), "real": torch.real, "imag": torch.imag, "set": lambda x: x}
BINARY: dict[str, Callable[[Any, Any], Any]] = {name: getattr(torch, name) for name in (
    "add sub mul atan2 eq ne lt le gt ge fmod remainder pow maximum minimum logical_and logical_or bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift gcd nextafter"
).split()}  # fmt: skip
BINARY |= {"truediv": torch.true_divide, "mod": torch.fmod}
SMALL = [-0.0, 0.0, -0.001, 0.001, -0.25, 0.25, -1.0, 1.0, -math.pi / 2, math.pi / 2, -math.pi, math.pi]
LARGE = [-501.0, 501.0, -1001.2, 1001.2, -13437.7, 13437.7]
SPECIAL = [float("inf"), float("-inf"), float("nan")]
SMALL_INTS, LARGE_INTS = [0, -1, 1, -55, 55, -127, 127, 128], [-1113, 1113, -10701, 10701]
DIVISORS = ("fmod", "mod", "remainder", "gcd")
ON_CPU = {"tan-float32", "pow-float32", "pow-complex64", "mul-complex64", "reciprocal-complex64", "truediv-complex64"}
"""Where torch on a CPU rounds otherwise in the last place, which is more than 1e-3 of a large result: compared relatively there."""


def special_values(dtype: torch.dtype, kinds: tuple[str, ...]) -> list[Any]:
    if dtype.is_complex:  # infinities and zeros times infinity are those of C's Annex G here, and torch's formulas there: test_complex_specials
        return [complex(a, b) for a in SMALL for b in SMALL[2:]] if "small" in kinds else []
    if not dtype.is_floating_point:
        return [v for kind in kinds for v in {"small": SMALL_INTS, "large": LARGE_INTS, "special": []}[kind]]
    return [v for kind in kinds for v in {"small": SMALL, "large": LARGE, "special": SPECIAL}[kind]]


def rand(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))

    def floats() -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 18 - 9

    if dtype.is_complex:
        return torch.complex(floats() / 4, floats() / 4).to(DEVICE, dtype)
    return (floats() if dtype.is_floating_point else torch.randint(-9, 10, shape, generator=generator)).to(DEVICE, dtype)


def samples(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    if DEVICE == "cuda":
        yield rand((), dtype)  # on the CPU it would be a CPU scalar
    for shape in ((0,), (5,), (2, 3), (2, 0, 3), (64, 64)) if DEVICE == "cuda" else ((0,), (5,)):
        yield rand(shape, dtype)
    yield rand((8, 9), dtype)[::2, 1::3]
    yield torch.tensor(special_values(dtype, ("small", "large", "special")), dtype=dtype, device=DEVICE)


def takes(function: Callable[..., Any], *operands: torch.Tensor) -> bool:
    try:
        function(*operands)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


def define(op: str, operands: tuple[torch.Tensor, ...]) -> FusionDefinition:
    with FusionDefinition() as fd:
        given = [fd.define_tensor([-1] * t.dim(), contiguity=[t.is_contiguous()] * t.dim(), dtype=KINDS[t.dtype]) for t in operands]
        fd.add_output(getattr(fd.ops, op)(*given))
    return fd


def check(op: str, function: Callable[..., Any], cases: list[tuple[torch.Tensor, ...]]) -> None:
    dtype = cases[0][0].dtype
    relative = 2e-5 if DEVICE == "cpu" and f"{op}-{str(dtype)[6:]}" in ON_CPU else 0.0
    made: dict[Any, FusionDefinition] = {}
    for operands in cases:
        form = tuple((t.dim(), t.is_contiguous()) for t in operands)
        if form not in made:
            made[form] = define(op, operands)
        got, wanted = made[form].execute(list(operands))[0], function(*operands)
        assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=relative, equal_nan=True)


UNARY_CASES = [(op, dtype) for op, function in UNARY.items() for dtype in TYPES if takes(function, torch.ones(2, dtype=dtype))]
BINARY_CASES = [(op, dtype) for op, function in BINARY.items() for dtype in TYPES if takes(function, torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype))]


@pytest.mark.parametrize(("op", "dtype"), UNARY_CASES, ids=lambda v: v if isinstance(v, str) else str(v)[6:])
def test_op(op: str, dtype: torch.dtype) -> None:
    check(op, UNARY[op], [(x,) for x in samples(dtype)])


@pytest.mark.parametrize(("op", "dtype"), BINARY_CASES, ids=lambda v: v if isinstance(v, str) else str(v)[6:])
def test_op_of_two(op: str, dtype: torch.dtype) -> None:
    values = special_values(dtype, ("small", "large", "special"))
    pairs = list(itertools.product(values[:: 7 if dtype.is_complex else 1], values[:: 5 if dtype.is_complex else 1]))
    a, b = (torch.tensor(column, dtype=dtype, device=DEVICE) for column in zip(*pairs))
    shapes = [((4,), (4,)), ((0,), (0,)), ((4, 4), (4,)), ((64, 64), (64, 64))]
    cases = [(rand(p, dtype), rand(q, dtype)) for p, q in shapes] + [(a, b)]
    is_int = not dtype.is_floating_point and not dtype.is_complex
    if "shift" in op:
        cases = [(x, y.abs() % 31) for x, y in cases]
    if is_int and op in DIVISORS:
        cases = [(x, torch.where(y == 0, 1, y)) for x, y in cases]
    if is_int and op == "pow":
        cases = [(x, y.abs() % 6) for x, y in cases]
    check(op, BINARY[op], cases)
