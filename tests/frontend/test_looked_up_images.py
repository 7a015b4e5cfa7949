"""Pixels of computed images that several index tensors name: computed where they are looked up, so the image is not stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(function, *inputs: Tensor) -> tuple[Tensor, int]:
    """Return the result and the number of kernels; they do not come from the cache, where a kernel has no parameters."""
    torch._dynamo.reset()
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "debug": True, "cache": False})(*inputs)
    return out, sum(len(call.kernels()) for graph in GRAPHS for call in graph.calls)


def test_an_axis_for_each_index() -> None:
    """Also of two and three axes, one of them of one element, negative positions, and between other axes."""
    x = torch.randn(3, 7, 9, 5)
    rows, columns = torch.tensor([[0, 6, -1], [2, 2, -7]]), torch.tensor([8, -9, 3, 3])
    samples = torch.tensor([2, 0, -1, 1])
    places = [
        lambda t, r, c, s: t[:, r[:, :, None], c],
        lambda t, r, c, s: t[:, r[0, :, None], c[None, :]],
        lambda t, r, c, s: t[s[:, None, None, None], r[:, :, None], c],
        lambda t, r, c, s: t[:, :, c[:, None], s],
        lambda t, r, c, s: t[:, r[:1, :, None, None], c[None, None, None]],
    ]
    for place in places:
        out, count = compiled(lambda t, *given: place(F.silu(t * 2), *given), x, rows, columns, samples)
        want = place(F.silu(x.double() * 2), rows, columns, samples)
        assert out.shape == want.shape and count == 1
        torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def test_indices_along_the_same_axes_name_pairs() -> None:
    """Or those of the second axis in front: positions in the merged axes, as before."""
    x = torch.randn(3, 7, 9)
    rows, columns = torch.tensor([0, 6, -1]), torch.tensor([8, -9, 3])
    for place in (lambda t, r, c: t[:, r, c], lambda t, r, c: t[:, r, c[:, None]], lambda t, r, c: t[:, r[:, None], c[:, None]]):
        out, _ = compiled(lambda t, *given: place(t.exp() + 1, *given), x, rows, columns)
        torch.testing.assert_close(out.double(), place(x.double().exp() + 1, rows, columns), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("pool", [(3, 2, 1), (5, 1, 2)], ids=str)
def test_a_pool_behind_a_norm(pool: tuple[int, ...], memory: torch.memory_format) -> None:
    """The stem of a ResNet, forward and backward, with windows that are looked up one by one or reduced."""
    x = torch.randn(2, 3, 11, 14).to(memory_format=memory)
    w, b = torch.randn(3), torch.randn(3)

    def stem(t: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(F.batch_norm(t, None, None, w.to(t.dtype), b.to(t.dtype), True)), *pool)

    compare(stem, x, gradient_atol=1e-5)


def test_the_stem_of_a_residual_network_stores_no_image() -> None:
    x, w, b = torch.randn(2, 4, 12, 16), torch.rand(4), torch.randn(4)

    def stem(t: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(F.batch_norm(t, None, None, w, b, True)), 3, 2, 1)

    with torch.no_grad():
        out, count = compiled(stem, x, w, b)
    torch.testing.assert_close(out.double(), stem(x.double(), w.double(), b.double()), rtol=1e-5, atol=1e-6)
    written = [param.name for graph in GRAPHS for call in graph.calls for kernel in call.kernels() for param in kernel.program.params if getattr(param, "written", False)]
    assert count == 2 and len(written) == 3  # two statistics, one result
