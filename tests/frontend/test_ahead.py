"""Kernels are made before the first call, by threads, from traced sizes alone; what goes wrong there is told by the call."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.frontend import ahead
from weft.frontend.backend import GRAPHS, backend
from weft.frontend.region_call import RegionCall
from weft.options import options
from weft.runtime.calls import Caller
from weft.runtime.runtimes import forget_kernels


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    forget_kernels()
    with options(check="races"):
        yield
    torch._dynamo.reset()


def model(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    y = F.gelu(torch.softmax(x * 1.25, -1) @ m)
    return F.silu(y.t().unsqueeze(0) * 3 + torch.tensor(0.5)) @ torch.tanh(m.t() + 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_first_call_finds_its_kernels(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    prepared: list[Any] = []
    plain = Caller._prepare

    def counted(self: Caller, values: Any, *rest: Any) -> Any:
        prepared.append(tuple(v.shape for v in values if isinstance(v, torch.Tensor)))
        return plain(self, values, *rest)

    monkeypatch.setattr(Caller, "_prepare", counted)
    x, m = torch.randn(6, 10), torch.randn(10, 6)
    fast = torch.compile(model, backend=backend, options={"emulate": True, "strict": True, "cache": False}, dynamic=dynamic)
    seen: list[int] = []
    run = RegionCall._run

    def watched(self: RegionCall, inputs: Any) -> Any:
        if not seen:
            wait([call.calls.pending for graph in GRAPHS for _, call in graph.regions if call.calls.pending])
            seen.append(len(prepared))
        return run(self, inputs)

    monkeypatch.setattr(RegionCall, "_run", watched)
    torch.testing.assert_close(fast(x, m), model(x, m), rtol=1e-5, atol=1e-5)
    regions = sum(len(graph.regions) for graph in GRAPHS)
    assert regions >= 3 and seen == [regions] and len(prepared) == regions
    assert all(call.calls.pending is None and call.kernels() for graph in GRAPHS for _, call in graph.regions)


def test_what_cannot_be_made_ahead_is_told_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: RegionCall, values: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(RegionCall, "prepare", fails)
    x, m = torch.randn(6, 10), torch.randn(10, 6)
    fast = torch.compile(model, backend=backend, options={"emulate": True, "strict": True, "cache": False})
    torch.testing.assert_close(fast(x, m), model(x, m), rtol=1e-5, atol=1e-5)


def test_tensors_that_stand_for_others_have_their_sizes_strides_and_alignment_and_no_memory() -> None:
    """Eight gibibytes here."""
    found: list[Any] = []
    values: list[Any] = [None, 7]
    with torch._subclasses.FakeTensorMode():
        values[0] = torch.empty_strided((1 << 20, 1 << 12), (1, 1 << 20), dtype=torch.bfloat16)
    (future,) = ahead.start([(found.extend, ahead.likenesses(values) or ())])
    future.result()
    tensor, number = found
    assert tensor.shape == (1 << 20, 1 << 12) and tensor.stride() == (1, 1 << 20) and tensor.dtype is torch.bfloat16 and number == 7
    assert tensor.data_ptr() % 64 == 0 and type(tensor) is torch.Tensor
