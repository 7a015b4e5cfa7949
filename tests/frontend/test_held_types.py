"""Values that torch holds in 16 bits: float32 within a kernel, 16 bits between kernels, and as they were where two of them are compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft import DataType
from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")
NARROW = {torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half}


def run(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, list[DataType]]:
    """Return the result, and the types of what all kernels but the last one write."""
    torch._dynamo.reset()
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "cache": False})(*inputs)
    kernels = [kernel.program for graph in GRAPHS for call in graph.calls for kernel in call.kernels()]
    return out, [p.dtype for program in kernels[:-1] for p in program.params if getattr(p, "written", False)]


def error_of(out: Tensor, want: Tensor) -> float:
    return float((out.double() - want).norm() / want.norm())


def regrouped(x: Tensor) -> Tensor:
    """Softmax over groups of 10 behind one of rows of 15: a reshape that stays."""
    return F.silu(x * x.softmax(-1)).reshape(-1, 10).softmax(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [8, 26], ids=str)
def test_a_reshape_that_stays_reads_16_bits(dtype: torch.dtype, rows: int) -> None:
    x = torch.randn(rows, 30)[:, ::2].to(dtype)
    out, stored = run(regrouped, x)
    assert stored == [NARROW[dtype]] and out.dtype is dtype
    assert error_of(out, regrouped(x.double())) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wider_types_are_stored_as_they_are(dtype: torch.dtype) -> None:
    x = torch.randn(8, 15, dtype=dtype)
    out, stored = run(regrouped, x)
    assert stored == [DataType.Double if dtype is torch.float64 else DataType.Float]
    assert error_of(out, regrouped(x.double())) <= 8 * torch.finfo(dtype).eps


def test_a_value_that_is_cast_to_float32_is_not_rounded_behind_that() -> None:
    """torch rounds it before the cast, and holds what follows in float32."""
    x = torch.randn(8, 15).bfloat16()
    out, stored = run(lambda t: (t.softmax(-1).float() * 3).reshape(-1, 10).softmax(-1), x)
    assert stored == [DataType.Float]
    assert error_of(out, (x.double().softmax(-1) * 3).reshape(-1, 10).softmax(-1)) <= 2**-7


def both_ways(x: Tensor) -> Tensor:
    """Rows and columns, behind more work than is done again."""
    for _ in range(12):
        x = x.sin() + 1
    return x / x.sum(0) + x / x.sum(1, keepdim=True)


@pytest.mark.parametrize("sizes", [(24, 33), (7, 64)], ids=str)
def test_a_tensor_between_kernels_has_16_bits(sizes: tuple[int, int]) -> None:
    x = torch.randn(sizes).bfloat16()
    out, stored = run(both_ways, x)
    assert DataType.BFloat16 in stored
    assert error_of(out, both_ways(x.double())) <= 2**-6


@pytest.mark.parametrize("compares", [lambda y, m: y == m, lambda y, m: y >= m], ids=["equal", "not less"])
def test_of_two_values_that_are_compared_none_is_rounded_alone(compares: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The largest element, which a kernel has in float32, is among those of another shape, which are stored."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        z = x * y.softmax(-1)
        return compares(z.reshape(-1, 10).float(), z.float().amax(-1).relu().amax()).sum()

    out, stored = run(function, torch.randn(8, 15).bfloat16(), torch.randn(8, 15).bfloat16())
    assert int(out) == 1 and DataType.BFloat16 not in stored
