"""Reshapes that have no common factorization with what surrounds them are computed where they are read: fewer kernels, with torch's values in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compared_images import compare
from torch import Tensor

from weft import DataType, FusionDefinition
from weft.frontend.backend import GRAPHS, backend
from weft.options import options
from weft.segment import partition
from weft.segment.plan import ViewStep

pytestmark = pytest.mark.usefixtures("fresh")


def encoded(x: Tensor) -> Tensor:
    """Positions, then sines and cosines of their multiples."""
    y = x[..., None, :] * (2.0 ** torch.arange(5))[:, None].to(x.dtype)
    return torch.cat([x, torch.stack([y.sin(), y.cos()], -2).flatten(1)], -1)


def turned_part(x: Tensor) -> Tensor:
    """Rotary positions, in pairs, of the last columns only."""
    plain, k = x.split([x.shape[1] - 6, 6], -1)
    a, b = k[..., ::2], k[..., 1::2]
    return torch.cat([plain, torch.stack((a.cos() - b, b + a.sin()), -1).flatten(-2)], -1)


def of_quaternions(x: Tensor) -> Tensor:
    """The products of rotated axes, six numbers each."""
    w, a, b, c = x.unflatten(-1, (-1, 4)).unbind(-1)
    r = torch.stack([1 - 2 * (b * b + c * c), 2 * (a * b - w * c), 2 * (a * c + w * b), 2 * (a * b + w * c), 1 - 2 * (a * a + c * c), 2 * (b * c - w * a),
                     2 * (a * c - w * b), 2 * (b * c + w * a), 1 - 2 * (a * a + b * b)], -1).unflatten(-1, (3, 3))  # fmt: skip
    s = (r[..., :, None, :] * r[..., None, :, :]).sum(-1)
    return torch.stack([s[..., 0, 0], s[..., 0, 1], s[..., 1, 2], s[..., 2, 2]], -1)


FUNCTIONS: dict[Callable[[Tensor], Tensor], int] = {encoded: 3, turned_part: 13, of_quaternions: 8}
"""A function, and the columns of its argument."""


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [257, 1, 0])
def test_values_and_gradients(function: Callable[[Tensor], Tensor], rows: int) -> None:
    with options(check="races"):
        compare(function, torch.rand(rows, FUNCTIONS[function]) + 0.1, atol=2e-6, gradient_atol=2e-4)  # terms of up to 16 times the slope


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_is_reshaped_is_not_stored(function: Callable[[Tensor], Tensor]) -> None:
    """One kernel for rows whose bytes count."""
    with torch.no_grad():
        torch.compile(function, backend=backend, options={"emulate": True, "strict": True})(torch.rand(20000, FUNCTIONS[function]))
    assert sum(len(call.kernels()) for graph in GRAPHS for call in graph.calls) == 1


@pytest.mark.parametrize("shape", [[5, 6, 4], [5, 3, 1, 8], [15, 8], [4, 30], [2, 60]], ids=str)
def test_any_two_shapes(shape: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotients and remainders along one axis or several of both sides, and an axis that stays, wherever a view of memory can be avoided."""
    monkeypatch.setattr(partition, "_bytes_moved", lambda plan, env: sum(isinstance(step, ViewStep) for step in plan.steps))
    x = torch.randn(5, 4, 6)
    with FusionDefinition() as fd:
        given = fd.define_tensor(shape=[5, 4, 6], contiguity=True, dtype=DataType.Float)
        total = fd.ops.broadcast(fd.ops.sum(given, [0]), [True, False, False])
        reshaped = fd.ops.reshape(fd.ops.mul(fd.ops.exp(given), total), new_shape=shape)
        fd.add_output(fd.ops.neg(fd.ops.sum(reshaped, [len(shape) - 1])))
        fd.add_output(fd.ops.add(fd.ops.reshape(given, new_shape=shape), reshaped))
        fd.add_output(fd.ops.mul(fd.ops.exp(given), total))
    with options(check="races", strict_schedules=True):
        of_rows, added, plain = fd.execute([x])
    y = x.double().exp() * x.double().sum(0)
    torch.testing.assert_close(plain.double(), y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(added.double(), (y + x).reshape(shape), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_rows.double(), -y.reshape(shape).sum(-1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("width", [9, 7, 8, 1])
def test_two_reshapes_of_other_sizes(width: int) -> None:
    """Of 18 columns, pairs of neighbours are rotated, and halves were the same: 9 times 2 and 2 times 9 are not one reshape."""

    def function(x: Tensor) -> Tensor:
        y = x.repeat(1, 2) * 0.5
        y = (y + y.sin()) * 0.5
        a, b = y[..., ::2], y[..., 1::2]
        angles = torch.arange(width).to(x) * 0.1
        return torch.stack((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).flatten(-2)

    compare(function, torch.randn(24, width), gradient_atol=1e-5)
