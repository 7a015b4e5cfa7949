"""Integer arithmetic on positions: quotients as index expressions, clamps and checks that ranges decide."""

from __future__ import annotations

import re

import pytest
import torch
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")


def text_and_result(function, *inputs: Tensor) -> tuple[str, Tensor]:
    torch._dynamo.reset()
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "debug": True})(*inputs)
    (kernel,) = [kernel for graph in GRAPHS for call in graph.calls for kernel in call.kernels()]
    return kernel.program.text, out


def at(x: Tensor, first: int, step: int, divisor: int, count: int) -> Tensor:
    places = torch.arange(count, dtype=torch.int32) * step + first
    places = torch.div(places, divisor, rounding_mode="trunc") if divisor > 1 else places
    return x.index_select(1, places.clamp(0, x.shape[1] - 1))


def test_positions_in_range_have_neither_clamps_nor_checks() -> None:
    x = torch.randn(3, 40)
    text, out = text_and_result(lambda t: at(t, 1, 2, 1, 16), x)
    assert torch.equal(out, x[:, 1:32:2])
    assert "weft::position" not in text and "int_max" not in text and "int_min" not in text


@pytest.mark.parametrize("first, count, kept", [(-1, 16, "int_max"), (10, 16, "int_min")])
def test_a_clamp_that_has_an_effect_stays(first: int, count: int, kept: str) -> None:
    x = torch.randn(3, 40)
    text, out = text_and_result(lambda t: at(t, first, 2, 1, count), x)
    assert torch.equal(out, x[:, (torch.arange(count) * 2 + first).clamp(0, 39)])
    assert set(re.findall("int_m..", text)) == {kept} and "weft::position" not in text


def test_positions_out_of_range_are_checked() -> None:
    x = torch.randn(3, 40)
    places = torch.arange(8, dtype=torch.int32)
    text, out = text_and_result(lambda t: t.index_select(1, places * 2), x)
    assert torch.equal(out, x[:, :16:2])
    assert "weft::position" in text  # the tensor is an input: nothing is known of it


@pytest.mark.parametrize("first, step, divisor", [(1, 1, 2), (3, 3, 4), (0, 5, 3), (-8, 3, 2), (7, 1, 8)])
@pytest.mark.parametrize("count", [16, 24, 33])
def test_quotients(first: int, step: int, divisor: int, count: int) -> None:
    """Of positions that are not negative they are index expressions, others as written."""
    x = torch.randn(2, 6, 90)
    text, out = text_and_result(lambda t: at(t.flatten(0, 1), first, step, divisor, count) * 2, x)
    places = torch.div(torch.arange(count) * step + first, divisor, rounding_mode="trunc").clamp(0, 89)
    assert torch.equal(out, x.flatten(0, 1)[:, places] * 2)
    assert ("int_div" in text) == (first < 0)


def test_conditions_that_ranges_decide() -> None:
    x = torch.randn(3, 24)

    def function(t: Tensor) -> Tensor:
        n = torch.arange(24, dtype=torch.int32)
        inside = (n + 1 >= 0) & (n < 24) & (n - 2 < 40)
        return torch.where(inside, t.index_select(1, (n + 1).clamp(0, 23)), 0.0) + torch.where((n < 0) | (n > 30), 1.0, 0.0)

    text, out = text_and_result(function, x)
    assert torch.equal(out, x[:, (torch.arange(24) + 1).clamp(0, 23)])
    assert ">= 0" not in re.sub(r"WEFT_ASSUME_BELOW.*", "", text) and "&&" not in text


def test_remainders_and_columns_of_an_odd_image() -> None:
    x = torch.randn(2, 5, 7)

    def function(t: Tensor) -> Tensor:
        rows, columns = (torch.arange(n, dtype=torch.int32) for n in (11, 13))
        t = t.index_select(1, torch.remainder(rows * 3, 5))
        return t.index_select(2, torch.div(columns, 2, rounding_mode="trunc")) + t.index_select(2, torch.remainder(columns, 7))

    _, out = text_and_result(function, x)
    t = x[:, torch.arange(11) * 3 % 5]
    assert torch.equal(out, t[:, :, torch.arange(13) // 2] + t[:, :, torch.arange(13) % 7])


RANGES = [
    (0.0, 1.05, 0.1, torch.float32),
    (1, -1, -0.25, torch.float32),
    (0.0, 6.0, 1, torch.float32),
    (-2.5, 3, 0.3, torch.float64),
    (0.5, 40, 1.5, torch.bfloat16),
]


@pytest.mark.parametrize("first, end, step, dtype", RANGES)
def test_ranges_in_steps_of_floats(first: float, end: float, step: float, dtype: torch.dtype) -> None:
    """Bins and time steps: their region is not left to torch."""
    count = len(torch.arange(first, end, step))
    x = torch.randn(3, count, dtype=dtype)
    _, out = text_and_result(lambda x: torch.arange(first, end, step, dtype=dtype) + x * 0, x)
    wanted = first + torch.arange(count, dtype=torch.float64) * step
    # the step as a float32, the product and the sum: half a unit each, of the larger of the two terms; the result is rounded once more
    near = 1.5 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * ((wanted - first).abs() + abs(first)) + torch.finfo(dtype).eps * wanted.abs()
    assert out.dtype is dtype and bool(((out.double() - wanted).abs() <= near).all())
