"""Axes of one element that are added and dropped again go, with all that lies between; others stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft import DataType, FusionDefinition
from weft.frontend.backend import GRAPHS, backend
from weft.graph.normalize import normalize
from weft.ir.values import BroadcastOp, SqueezeOp


def rotated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * c + torch.cat((-b, a), -1) * s


@pytest.mark.parametrize("shape", [(2, 3, 10, 16), (1, 1, 1, 2), (3, 2, 5, 66)], ids=str)
def test_a_norm_of_one_group_before_rotary_positions_is_one_kernel(shape: tuple[int, ...]) -> None:
    """Gradients, too, are those of the norm without the axis."""

    def f(x: Tensor, g: Tensor, c: Tensor, s: Tensor) -> Tensor:
        groups = F.normalize(x.unflatten(-1, (1, shape[-1])), dim=-1)
        return rotated(groups.flatten(-2) * g, c, s)

    inputs = [torch.randn(shape), torch.randn(shape[1], 1, 1), torch.randn(shape[2:]), torch.randn(shape[2:])]
    ours, theirs = ([x.detach().clone().to(dtype).requires_grad_() for x in inputs] for dtype in (torch.float32, torch.float64))
    torch._dynamo.reset()
    with poisoned_outputs():
        out = torch.compile(f, backend=backend, options={"emulate": True, "strict": True})(*ours)
    want = f(*theirs)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    forward = next(graph for graph in GRAPHS if graph.kind == "forward")
    assert sum(len(call.kernels()) for call in forward.calls) == 1
    slope = torch.randn(shape)
    out.backward(slope)
    want.backward(slope.double())
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
    torch._dynamo.reset()


def axes_added_and_dropped(fd: FusionDefinition) -> int:
    return sum(isinstance(e, (BroadcastOp, SqueezeOp)) for e in normalize(fd.fusion).tensor_exprs())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_between_is_computed_without_the_axis(place: int) -> None:
    """Pointwise ops, a sum that is broadcast again, a cast; wherever the axis is."""
    flags = [n == place for n in range(3)]
    last = 1 if place == 2 else 2
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        wide = fd.ops.exp(fd.ops.broadcast(x, flags))
        total = fd.ops.sum(fd.ops.mul(wide, 0.5), [last], True)
        shares = fd.ops.cast(fd.ops.truediv(wide, total), DataType.BFloat16)
        fd.add_output(fd.ops.neg(fd.ops.squeeze(shares, [place])))
    assert axes_added_and_dropped(fd) == 1  # of the total
    for shape in ((5, 33), (1, 7), (4, 1)):
        x = torch.randn(shape)
        with poisoned_outputs():
            (out,) = fd.execute([x])
        want = -(x.double().softmax(1) * 2)
        torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=0)


def test_axes_that_something_needs_stay() -> None:
    """One that another operand has elements along, one of a result, one of an input, one that is expanded."""
    with FusionDefinition() as fd:
        x, y, z = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1, -1], contiguity=True), fd.define_tensor([1, -1], contiguity=True)
        wide = fd.ops.broadcast(x, [False, True, False])
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.sin(wide), y), [1]))
        fd.add_output(fd.ops.cos(wide))
        fd.add_output(fd.ops.squeeze(fd.ops.exp(z), [0]))
        fd.add_output(fd.ops.sum(fd.ops.expand(fd.ops.exp(wide), [-1, 3, -1]), [1]))
    x, y, z = torch.randn(4, 6), torch.randn(4, 5, 6), torch.randn(1, 9)
    outs = fd.execute([x, y, z])
    d = x.double()
    for out, want in zip(outs, ((d.sin()[:, None] * y).sum(1), d.cos()[:, None], z.double().exp()[0], 3 * d.exp())):
        assert out.shape == want.shape
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
