"""mode="reduce-overhead" on a GPU: steps are recorded and replayed, values and gradients stay right, and no memory of weft's stays in the graphs' pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from weft.frontend.backend import backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(autouse=True)
def checked():
    import torch._inductor.config as config

    torch._dynamo.reset()
    torch.manual_seed(0)
    with config.patch({"triton.slow_path_cudagraph_asserts": True}):
        yield
    torch._dynamo.reset()


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, mode="reduce-overhead")


def count_graphs() -> int:
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(0, create_if_none_exists=False)
    return 0 if manager is None else sum(len(nodes) for nodes in manager.roots.values())


def test_kernels_with_zeroed_memory_are_recorded() -> None:
    fast = recorded(lambda x: (x * x.sum(0) + x.sum()).sum(0))
    for _ in range(4):
        x = torch.randn(40000, 256, device="cuda")
        want = (x.double() * x.double().sum(0) + x.double().sum()).sum(0)
        assert float((fast(x) - want).abs().max() / want.abs().max()) < 1e-5
    assert count_graphs() > 0


def test_inference_is_recorded() -> None:
    model = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.RMSNorm(256)).cuda()
    fast = recorded(model)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(512, 256, device="cuda")
            torch.testing.assert_close(fast(x).clone(), model(x), rtol=1e-4, atol=1e-4)
    assert count_graphs() > 0


def test_training_is_recorded_forward_and_backward() -> None:
    model = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.RMSNorm(256)).cuda()
    fast = recorded(model)
    for _ in range(5):
        x = torch.randn(512, 256, device="cuda")
        grads = []
        for function in (model, fast):
            torch.compiler.cudagraph_mark_step_begin()
            model.zero_grad(set_to_none=True)
            function(x).square().mean().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert count_graphs() > 0


def test_each_replay_draws_other_numbers() -> None:
    fast = recorded(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1 << 16, device="cuda")
    seen = [fast(x).clone() for _ in range(5)]
    for drawn in seen:
        assert 0.49 < float((drawn != 0).float().mean()) < 0.51  # five standard deviations of 65536 draws
    assert all(float((a != b).float().mean()) > 0.4 for a, b in zip(seen, seen[1:]))
