"""Windows of an axis (`Tensor.unfold`) and their gradients are in kernels, with torch's values."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")

CASES = [
    ((3, 41), -1, 8, 3), ((3, 41), 0, 2, 1), ((5, 1), 0, 5, 7), ((2, 37, 3), 1, 4, 9), ((2, 30, 3), 1, 6, 6), ((7, 100), 1, 70, 1), ((1, 9), 1, 1, 1), ((4, 6, 5), 2, 3, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim", "size", "step"), CASES, ids=str)
def test_windows_and_their_gradient(shape: tuple[int, ...], dim: int, size: int, step: int, dtype: torch.dtype) -> None:
    """Windows that overlap, that are next to each other and apart, elements behind the last one, more windows over an element than are added one by one."""
    x = torch.randn(shape).to(dtype)
    weight = torch.randn(size)

    def windows(x: torch.Tensor) -> torch.Tensor:
        f = (x * 2).unfold(dim, size, step)
        return (f - f.mean(-1, keepdim=True)) * weight.to(x.dtype)

    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    with poisoned_outputs():
        out = torch.compile(windows, backend=backend, options={"emulate": True, "strict": True, "debug": True})(ours)
        slope = torch.randn(out.shape).to(dtype)
        out.backward(slope)
    want = windows(theirs)
    want.backward(slope.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=4 * eps, atol=16 * eps)
    assert ours.grad is not None and theirs.grad is not None
    terms = -(-size // step)
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=4 * eps, atol=16 * eps * terms)
    assert not any(graph.torch_ops for graph in GRAPHS)


def test_windows_of_an_argument_alone_stay_a_view() -> None:
    x = torch.randn(4, 20)
    out = torch.compile(lambda x: (x.unfold(1, 5, 2), x + 1), backend=backend, options={"emulate": True})(x)[0]
    assert torch.equal(out, x.unfold(1, 5, 2)) and out.data_ptr() == x.data_ptr()


def test_windows_of_open_sizes() -> None:
    fast = torch.compile(lambda x: x.unfold(1, 5, 2).exp() * 2, backend=backend, options={"emulate": True, "strict": True}, dynamic=True)
    for sizes in ((3, 11), (4, 30), (2, 7)):
        x = torch.randn(sizes)
        torch.testing.assert_close(fast(x), x.unfold(1, 5, 2).exp() * 2)
