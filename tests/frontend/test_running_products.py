"""Gradients of running products through torch.compile: one op in the graph, and one kernel; elements may be 0."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontend.backend import GRAPHS, backend
from weft.frontend.running_products import running_products_kept

pytestmark = pytest.mark.usefixtures("fresh")
OPTIONS = {"emulate": True, "strict": True, "debug": True}
OURS = torch.ops.weft.running_product_backward.default


def numbers(*shape: int, dim: int = -1) -> Tensor:
    """Numbers about 1, of both signs, with no, one, two or several zeros in a row, also as its first and last element."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = (0.05 * torch.randn(shape, generator=generator)).exp() * (torch.randint(0, 2, shape, generator=generator) * 2 - 1)
    if not x.numel():
        return x
    rows = x.movedim(dim, -1).contiguous()
    size = rows.shape[-1]
    for number, row in enumerate(rows.view(-1, size)):
        row[[[], [0], [size - 1], [size // 3], [size // 3, size // 2], [0, size // 4, size - 1], list(range(0, size, 3))][number % 7]] = 0.0
    return rows.movedim(-1, dim).contiguous()


def gradients(function: Callable[..., Tensor], inputs: list[Tensor], slope: Tensor, **given: Any) -> list[Tensor]:
    torch._dynamo.reset()
    ours = [t.clone().requires_grad_() for t in inputs]
    with contextlib.nullcontext() if given else poisoned_outputs():  # torch.empty of unknown sizes is part of tracing
        out = torch.compile(function, backend=backend, options=OPTIONS, **given)(*ours)
    want = function(*(t.double() for t in inputs)).double()
    roundings = (16 + max(inputs[0].shape)) * torch.finfo(out.dtype).eps  # one for each factor
    torch.testing.assert_close(out.double(), want, rtol=roundings, atol=roundings)
    with poisoned_outputs():
        out.backward(slope.to(out.dtype))
    return [t.grad for t in ours]  # type: ignore[misc]


def check(function: Callable[..., Tensor], inputs: list[Tensor], rtol: float, **given: Any) -> None:
    """Compare results and gradients with float64. rtol: of the largest element of each gradient, because terms of both signs are added up."""
    slope = torch.randn(function(*inputs).shape, generator=torch.Generator().manual_seed(5))
    wide = [t.double().clone().requires_grad_() for t in inputs]
    out = function(*wide)
    out.backward(slope.to(function(*inputs).dtype).double())
    for got, t, x in zip(gradients(function, inputs, slope, **given), wide, inputs):
        assert got.dtype is x.dtype and t.grad is not None
        torch.testing.assert_close(got.double(), t.grad, rtol=rtol, atol=rtol * float(t.grad.abs().max()) if x.numel() else 0.0)


def kernels_of_backward() -> int:
    return sum(len(call.kernels()) for graph in GRAPHS if graph.kind == "backward" for call in graph.calls)


SHAPES = [((9, 129), 1), ((9, 129), -1), ((150, 11), 0), ((8, 30, 5), 1), ((3, 1), 1), ((1, 7), 0), ((40,), 0), ((0, 6), 1), ((4, 0), 1), ((14, 3), 1), ((1, 9001), 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
def test_running_products(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    check(lambda x: x.cumprod(dim), [numbers(*shape, dim=dim).to(dtype)], 2e-5 if dtype is torch.float32 else 1e-12)
    if torch.Size(shape).numel() and shape[dim] > 1:
        assert kernels_of_backward() == 1
        assert all(not graph.torch_ops for graph in GRAPHS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("wider", [False, True])
def test_numbers_of_16_bits(dtype: torch.dtype, wider: bool) -> None:
    x = numbers(9, 40).to(dtype)
    check(lambda x: x.cumprod(1, dtype=torch.float32 if wider else None), [x], 4 * torch.finfo(dtype).eps)
    assert kernels_of_backward() == 1


def composited(density: Tensor, step: Tensor, color: Tensor) -> Tensor:
    """Colors along rays. Where the first factor of a sample is 0, nothing behind it is seen."""
    a = 1 - torch.exp(-F.relu(density) * step)
    seen = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a], -1), -1)[:, :-1]
    return ((a * seen)[..., None] * color).sum(1)


def test_composited_colors() -> None:
    density, step, color = torch.randn(19, 67), torch.rand(19, 67), torch.rand(19, 67, 3)
    density[3, 5] = density[4, 7] = density[4, 60] = 1e4  # opaque: 1 - a is 0
    step[3, 5] = step[4, 7] = step[4, 60] = 1.0
    check(composited, [density, step, color], 1e-5)
    assert kernels_of_backward() <= 3


def test_work_around_it_and_unknown_sizes() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.sin() + 1).cumprod(1) * y

    for rows in (6, 9):
        check(function, [0.1 * torch.randn(rows, 50), torch.randn(rows, 50)], 1e-5, dynamic=True)
        (backward,) = (graph for graph in GRAPHS if graph.kind == "backward")
        assert not backward.torch_ops and sum(len(call.kernels()) for call in backward.calls) == 1
        GRAPHS.clear()


def traced(*, is_emulated: bool, **keywords: Any) -> list[Any]:
    """Return the ops of torch's gradient of a product of 8 factors, traced as AOTAutograd does it while weft compiles a graph."""

    def gradient(grad: Tensor, x: Tensor, product: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.ops.aten.cumprod_backward.default(grad, x, 1, product)

    with FakeTensorMode(), running_products_kept(is_emulated=is_emulated), enable_python_dispatcher():
        graph = make_fx(dispatch_functionalize(gradient))(*(torch.empty(6, 8, **keywords) for _ in range(3))).graph
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_the_gradient_is_one_op() -> None:
    assert traced(is_emulated=True) == [OURS]
    assert traced(is_emulated=False, device="cuda") == [OURS]


def test_others_are_torchs() -> None:
    """On a CPU, where the emulator does not run the graph, and of complex numbers."""
    assert OURS not in traced(is_emulated=False, device="cpu")
    assert OURS not in traced(is_emulated=True, dtype=torch.complex64)


def test_other_threads_and_other_code_keep_torchs_gradient() -> None:
    x = numbers(3, 9).double().requires_grad_()
    wanted = torch.autograd.grad(x.cumprod(1).sum(), x)[0]
    calls: list[Tensor] = []

    def elsewhere() -> None:
        with enable_python_dispatcher():
            calls.extend(torch.autograd.grad(x.cumprod(1).sum(), x))

    with running_products_kept(is_emulated=True):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    elsewhere()
    assert len(calls) == 2 and all(torch.equal(call, wanted) for call in calls)


def test_gradients_of_gradients_are_torchs() -> None:
    x = numbers(2, 5).double().requires_grad_()

    def second() -> Tensor:
        (first,) = torch.autograd.grad(x.cumprod(1).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    wanted = second()
    with running_products_kept(is_emulated=True), enable_python_dispatcher():
        torch.testing.assert_close(second(), wanted, rtol=1e-12, atol=1e-12)


def test_long_rows_are_traced_as_fast_as_short_ones() -> None:
    """In torch 2.11 the gradient is composed of ops for each element."""
    x = (0.01 * torch.randn(1, 40000, dtype=torch.float64)).exp()
    check(lambda x: x.cumprod(1), [x], 1e-10)
    assert kernels_of_backward() == 1
