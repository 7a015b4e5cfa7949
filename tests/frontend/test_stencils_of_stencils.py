"""Stencils of stencils, whose ends are padded: what they would compute at many places is stored once; values and gradients are torch's in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.frontend.backend import GRAPHS
from weft.graph.normalize import normalize
from weft.graph.repeated_values import ORIGIN
from weft.ir.fusion import Fusion
from weft.ir.values import PointwiseOp
from weft.lower.program import KernelProgram, TensorParam

pytestmark = pytest.mark.usefixtures("fresh")


def slope(x: torch.Tensor) -> torch.Tensor:
    """Differences of series [N, rows, features] over two rows on either side, whose ends are repeated."""
    p = F.pad(x.transpose(1, 2), (2, 2), mode="replicate").transpose(1, 2)
    n = x.shape[1]
    return (p[:, 3 : 3 + n] - p[:, 1 : 1 + n] + 2 * (p[:, 4 : 4 + n] - p[:, :n])) / 10


def slopes(x: torch.Tensor) -> torch.Tensor:
    y = (x.square() + 0.5).log()
    d = slope(y)
    return torch.cat([y, d, slope(d)], -1)


def step(x: torch.Tensor) -> torch.Tensor:
    """A field with walls: fluxes of a state that is costly to compute, divided by it."""
    h = F.softplus(x) + 1

    def sides(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = F.pad(t, (1, 1, 1, 1), mode="replicate")
        return p[:, 1:-1, :-2], p[:, 1:-1, 2:], p[:, :-2, 1:-1], p[:, 2:, 1:-1]

    left, right, up, down = sides(h * h)
    mean = sum(sides(h)) / 4
    return (mean - 0.01 * (right - left) - 0.02 * (down - up)) / (1 + mean)


def blurred_edges(x: torch.Tensor) -> torch.Tensor:
    """Windows of windows of a mirrored image."""
    blurred = F.avg_pool2d(F.pad(x.tanh(), (1, 1, 1, 1), mode="reflect")[:, None], 3, 1)[:, 0]
    p = F.pad(blurred.exp(), (1, 1, 1, 1), mode="reflect")
    return (p[:, 1:-1, 2:] - p[:, 1:-1, :-2]).abs() + (p[:, 2:, 1:-1] - p[:, :-2, 1:-1]).abs()


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [slopes, step, blurred_edges]
SIZES = [(2, 9, 16), (3, 7, 33), (2, 2, 130), (1, 3, 2)]
CASES = [*((function, sizes) for function in FUNCTIONS for sizes in SIZES), (slopes, (0, 5, 4)), (slopes, (2, 1, 1)), (step, (2, 1, 1))]
"""torch has no pads of images without any, and none that mirror a single pixel."""


@pytest.mark.parametrize(("function", "sizes"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_values_and_gradients(function: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...]) -> None:
    compare(function, torch.randn(sizes), gradient_atol=1e-5)


@pytest.mark.usefixtures("chosen_anew")
@pytest.mark.parametrize(("function", "sizes"), [(f, ((2, 11, 37), (1, 6, 3))[n % 2]) for n, f in enumerate(FUNCTIONS)], ids=lambda v: getattr(v, "__name__", str(v)))
def test_values_and_gradients_where_storing_pays(
    function: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Of a tensor large enough that a launch does not matter: here launches take no time."""
    monkeypatch.setattr("weft.graph.window_places.LAUNCH_BYTES", 0)
    compare(function, torch.randn(sizes), gradient_atol=1e-5)


def _differences(rows: int, columns: int, times: int) -> Fusion:
    """Logarithms of positive numbers, and differences of rows on either side, so many times."""
    with FusionDefinition() as fd:
        value = fd.ops.log(fd.define_tensor([rows, columns], contiguity=True, dtype=DataType.Float))
        for _ in range(times):
            place = fd.ops.iota(rows, dtype=DataType.Int)
            at = [fd.ops.minimum(fd.ops.maximum(fd.ops.add(place, n), 0), rows - 1) for n in (-2, -1, 1, 2)]
            a, b, c, d = (fd.ops.index_select(value, index, 0) for index in at)
            value = fd.ops.add(fd.ops.sub(d, a), fd.ops.mul(fd.ops.sub(c, b), 2.0))
        fd.add_output(value)
    return normalize(fd.fusion)


def _logarithms(fusion: Fusion) -> int:
    return sum(isinstance(e, PointwiseOp) and e.op_name == "log" for e in fusion.tensor_exprs())


def test_a_difference_of_differences_stores_what_it_would_compute_at_sixteen_places() -> None:
    """Small tensors are computed again: a launch takes longer."""
    large, small = _differences(8192, 2048, 2), _differences(96, 40, 2)
    assert _logarithms(large) <= 4 < _logarithms(small) <= 16
    assert not any(ORIGIN in e.attributes for e in (*large.tensor_exprs(), *small.tensor_exprs()))


def test_one_difference_computes_its_few_places() -> None:
    assert _logarithms(_differences(8192, 2048, 1)) == 4


def _programs(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[KernelProgram]:
    """The kernels of the backward; the gradient is torch's in float64."""
    torch._dynamo.reset()
    exact = x.double().requires_grad_()
    x.requires_grad_()
    with poisoned_outputs():
        out = torch.compile(function, backend="weft", options={"emulate": True, "strict": True})(x)
        slope = torch.randn_like(out)
        out.backward(slope)
    function(exact).backward(slope.double())
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)
    return [kernel.program for kernel in GRAPHS[-1].calls[-1].kernels()]


@pytest.mark.usefixtures("chosen_anew")
def test_positions_are_counted_in_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is written for another kernel, which would not know where it is."""
    monkeypatch.setattr("weft.graph.window_places.LAUNCH_BYTES", 0)
    programs = _programs(step, torch.randn(2, 11, 37))
    assert len(programs) > 1
    assert not any(p.dtype.is_integer or p.dtype.is_bool for program in programs for p in program.params if isinstance(p, TensorParam))


@pytest.mark.usefixtures("chosen_anew")
def test_masked_positions_are_compared_in_32_bits() -> None:
    """Slices of an image and its border: gradients are looked up at positions that may be outside."""
    programs = _programs(lambda x: F.pad(x * x, (1, 1, 1, 1), mode="replicate")[:, 2:, 1:-1].sin(), torch.randn(2, 9, 13))
    assert any("at1_" in p.text for p in programs) and not any("const long long at" in p.text for p in programs)
