"""Doubles of which a cast keeps nothing are computed as floats, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.options import options

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half, torch.float64: DataType.Double}
SHAPES = [(5, 37), (1, 1), (0, 4), (3, 64)]
Compute = Callable[[FusionDefinition, Any, Any, Any], Any]


def definition(compute: Compute, dtype: torch.dtype) -> FusionDefinition:
    """A definition of two tensors of floats and a mask, whose result is cast to `dtype`."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        mask = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Bool)
        fd.add_output(fd.ops.cast(compute(fd, x, y, mask), TYPES[dtype]))
    return fd


def given(shape: tuple[int, ...]) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(sum(shape))
    x, y = (torch.randn(*shape, generator=made) for _ in range(2))
    return [x, y, torch.randint(2, shape, generator=made) > 0]


def doubles(fd: FusionDefinition) -> int:
    return sum(t.dtype() is DataType.Double for t in normalize(fd.fusion).tensors() if t.definition() is not None)


def hot(fd: FusionDefinition, mask: Any, on: float = 1.0, off: float = 0.0) -> Any:
    return fd.ops.where(mask, fd.define_scalar(on), fd.define_scalar(off))


def wide(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.cast(x, DataType.Double)


SINGLE: dict[str, tuple[Compute, Callable[..., torch.Tensor], tuple[torch.dtype, ...]]] = {
    "mask": (lambda fd, x, y, m: hot(fd, m), lambda x, y, m: m.double(), (torch.bfloat16, torch.float16, torch.float32)),
    "difference and product": (
        lambda fd, x, y, m: fd.ops.mul(fd.ops.sub(x, hot(fd, m)), y), lambda x, y, m: (x.double() - m.double()) * y.double(), (torch.bfloat16, torch.float16),
    ),
    "mask that scales": (
        lambda fd, x, y, m: fd.ops.mul(x, hot(fd, m, 1 / 0.9)), lambda x, y, m: x.double() * m.double() / 0.9, (torch.bfloat16, torch.float16),
    ),
    "quotient": (lambda fd, x, y, m: fd.ops.div(wide(fd, x), hot(fd, m, 3.0, 7.0)), lambda x, y, m: x.double() / torch.where(m, 3.0, 7.0).double(), (torch.bfloat16,)),
    "negative": (lambda fd, x, y, m: fd.ops.neg(fd.ops.add(x, hot(fd, m))), lambda x, y, m: -(x.double() + m.double()), (torch.bfloat16,)),
    "one sum": (lambda fd, x, y, m: fd.ops.add(wide(fd, x), wide(fd, y)), lambda x, y, m: x.double() + y.double(), (torch.float32, torch.bfloat16)),
    "one product": (lambda fd, x, y, m: fd.ops.mul(wide(fd, x), wide(fd, y)), lambda x, y, m: x.double() * y.double(), (torch.float32, torch.bfloat16)),
}  # fmt: skip
CASES = [(name, dtype) for name, (_, _, dtypes) in SINGLE.items() for dtype in dtypes]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_floats_give_it(name: str, dtype: torch.dtype) -> None:
    compute, reference, _ = SINGLE[name]
    fd = definition(compute, dtype)
    assert doubles(fd) == 0
    for shape in SHAPES:
        inputs = given(shape)
        with poisoned_outputs(), options(check="races"):
            (out,) = fd.execute(inputs)
        want = reference(*inputs)
        assert out.dtype is dtype and out.shape == want.shape
        if dtype is torch.float32:
            assert torch.equal(out, want.float())  # the same bits
        else:
            torch.testing.assert_close(out.double(), want, rtol=0.5001 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)


def test_strided_rows() -> None:
    compute, reference, _ = SINGLE["difference and product"]
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=False) for _ in range(2))
        fd.add_output(fd.ops.cast(compute(fd, x, y, fd.define_tensor([-1, -1], contiguity=False, dtype=DataType.Bool)), DataType.BFloat16))
    inputs = [t[:, 1::2] for t in given((7, 51))]
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute(inputs)
    torch.testing.assert_close(out.double(), reference(*inputs), rtol=0.5001 * torch.finfo(torch.bfloat16).eps, atol=1e-38)


KEPT: dict[str, tuple[Compute, torch.dtype]] = {
    "two roundings, cast to Float": (lambda fd, x, y, m: fd.ops.mul(fd.ops.sub(x, hot(fd, m)), y), torch.float32),
    "a difference of rounded values": (lambda fd, x, y, m: fd.ops.sub(fd.ops.mul(wide(fd, x), wide(fd, y)), fd.ops.mul(x, y)), torch.bfloat16),
    "a product that may be infinite as a float": (lambda fd, x, y, m: fd.ops.mul(fd.ops.mul(wide(fd, x), wide(fd, y)), hot(fd, m)), torch.bfloat16),
    "a constant that no float is near": (lambda fd, x, y, m: fd.ops.mul(x, hot(fd, m, 1e300)), torch.bfloat16),
    "a sum with a rounded constant": (lambda fd, x, y, m: fd.ops.sub(x, hot(fd, m, 1 / 3)), torch.bfloat16),
    "another function": (lambda fd, x, y, m: fd.ops.exp(fd.ops.sub(x, hot(fd, m))), torch.bfloat16),
    "a result in double": (lambda fd, x, y, m: fd.ops.sub(x, hot(fd, m)), torch.float64),
}


@pytest.mark.parametrize("name", KEPT)
def test_doubles_that_matter_stay(name: str) -> None:
    compute, dtype = KEPT[name]
    assert doubles(definition(compute, dtype)) > 0


def test_large_values_meet_in_double() -> None:
    """(x * x) * 0 and x * x - x * x: infinite or not a number if products were floats."""
    with FusionDefinition() as fd:
        x, mask = fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=DataType.Bool)
        square = fd.ops.mul(wide(fd, x), wide(fd, x))
        fd.add_output(fd.ops.cast(fd.ops.mul(square, hot(fd, mask)), DataType.BFloat16))
        fd.add_output(fd.ops.cast(fd.ops.sub(square, square), DataType.BFloat16))
    inputs = [torch.full((5,), 3e38), torch.zeros(5, dtype=torch.bool)]
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute(inputs)
    assert all(torch.equal(out, torch.zeros(5, dtype=torch.bfloat16)) for out in outs)


def test_a_value_that_is_read_in_double_too() -> None:
    """The cast reads the same double as the other reader: nothing is computed twice."""
    with FusionDefinition() as fd:
        x, mask = fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=DataType.Bool)
        difference = fd.ops.sub(x, hot(fd, mask))
        fd.add_output(fd.ops.cast(difference, DataType.BFloat16))
        fd.add_output(fd.ops.exp(difference))
    assert doubles(fd) == 4  # the cast of x, the mask, the difference, its exponential
    x, mask = torch.randn(9), torch.randint(2, (9,)) > 0
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute([x, mask])
    torch.testing.assert_close(outs[1], (x.double() - mask.double()).exp())
