"""Pointwise kernels whose threads have whole rows of a short innermost loop: values and gradients beside torch in float64, and when they are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compared_images import compare
from fusion_check import poisoned_outputs
from torch import Tensor
from torch.nn import functional as F

from weft import DataType, FusionDefinition
from weft.arch import H100
from weft.check.records import programs
from weft.frontend.backend import GRAPHS, backend
from weft.lower.program import TensorParam
from weft.schedulers import pointwise
from weft.schedulers.whole_rows import MOST_ELEMS, WholeRowParams


def turned(x: Tensor) -> Tensor:
    """A point turned by a quaternion."""
    q, p = F.normalize(x[:, :4], dim=-1), x[:, 4:7]
    t = 2 * torch.linalg.cross(q[:, 1:], p)
    return p + q[:, :1] * t + torch.linalg.cross(q[:, 1:], t)


def doubled(x: Tensor) -> Tensor:
    """The square of a quaternion of unit length: rows of a vector."""
    q = F.normalize(x[:, :4].contiguous(), dim=-1)
    w, v = q[:, :1], q[:, 1:]
    return torch.cat([w * w - (v * v).sum(-1, keepdim=True), 2 * w * v], -1).exp() * q


def moved(x: Tensor) -> Tensor:
    """By an angle of which all coordinates need sine and cosine."""
    w, p = x[:, :3], x[:, 3:6]
    s = w.square().sum(-1, keepdim=True) + 0.1
    return p + s.sin() / s * torch.linalg.cross(w, p) + (1 - s.cos()) / s.square() * p.roll(1, -1)


def inverse(x: Tensor) -> Tensor:
    """Of matrices of three by three: rows of two loops."""
    m = x[:, :9].unflatten(-1, (3, 3)) + 3 * torch.eye(3, dtype=x.dtype)
    minors = torch.linalg.cross(m.roll(-1, -2), m.roll(-2, -2), dim=-1)
    det = (m[:, 0, 0] * minors[:, 0, 0] + m[:, 0, 1] * minors[:, 0, 1] + m[:, 0, 2] * minors[:, 0, 2])[:, None, None]
    return minors.transpose(-1, -2) / det


FUNCTIONS = (turned, doubled, moved, inverse)


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch, chosen_anew: None) -> None:
    """Take whole rows wherever they are possible."""
    monkeypatch.setattr(pointwise, "NEAR", -1e9)


def params_of_kernels() -> list[Any]:
    return [runtime.proposal.params for graph in GRAPHS for call in graph.calls for runtime in call.kernels()]


@pytest.mark.usefixtures("fresh", "preferred")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(333, 9), (1, 11), (0, 9)], ids=str)
def test_values_and_gradients(function: Callable[[Tensor], Tensor], shape: tuple[int, int]) -> None:
    compare(function, torch.rand(shape) + 0.1, rtol=2e-5, atol=2e-6, gradient_rtol=2e-4, gradient_atol=5e-5)
    if shape[0] > 1:  # one row has no loop around it
        assert any(isinstance(params, WholeRowParams) for params in params_of_kernels())


def by_row(columns: int, dtype: DataType = DataType.Float, ops: int = 6) -> FusionDefinition:
    """Each element times a value that takes many ops and that its row shares; sizes are those of the call."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        y = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=dtype)
        factor = fd.ops.cast(y, DataType.Float)
        for _ in range(ops):
            factor = fd.ops.sin(fd.ops.add(factor, 0.5))
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.cast(x, DataType.Float), factor), dtype))
    return fd


@pytest.mark.usefixtures("preferred")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [3, 4, 6, 8, 16])
def test_rows_of_any_length_up_to_the_most(columns: int, dtype: torch.dtype) -> None:
    """Their length is a number in the kernel, so that others get a kernel of their own."""
    assert MOST_ELEMS == 16
    fd = by_row(columns, DataType.Float if dtype is torch.float32 else DataType.BFloat16)
    for rows, count in ((1031, columns), (130, columns + 1), (67, columns)):
        generator = torch.Generator().manual_seed(rows)
        x, y = torch.randn(rows, count, generator=generator).to(dtype), torch.randn(rows, 1, generator=generator).to(dtype)
        with poisoned_outputs():
            (out,) = fd.execute([x, y])
        factor = y.double()
        for _ in range(6):
            factor = (factor + 0.5).sin()
        torch.testing.assert_close(out.double(), x.double() * factor, rtol=1e-5 if dtype is torch.float32 else 2.0**-8, atol=1e-6)
    found = [r.proposal.params for r in fd.fec.kernel_runtimes]  # type: ignore[attr-defined]
    whole = {p.extents: p.vector_elems for p in found if isinstance(p, WholeRowParams)}
    assert whole == {(n,): min(16 // dtype.itemsize, n & -n) for n in (columns, columns + 1) if n <= MOST_ELEMS}


def test_when_whole_rows_are_chosen() -> None:
    """Where a thread has to compute much for an element which others of its row share, and where so many rows are that this takes longer than their bytes."""
    kinds = {(rows, columns, ops): programs(by_row(columns, ops=ops), [(rows, columns), (rows, 1)], H100)[0].params.split("(")[0]
             for rows, columns, ops in ((1 << 20, 3, 6), (1 << 20, 3, 0), (1 << 20, 64, 6), (16, 3, 6))}  # fmt: skip
    assert kinds == {
        (1 << 20, 3, 6): "WholeRowParams", (1 << 20, 3, 0): "PointwiseParams", (1 << 20, 64, 6): "PointwiseParams", (16, 3, 6): "PointwiseParams",
    }  # fmt: skip


@pytest.mark.usefixtures("fresh", "chosen_anew")
def test_a_turn_of_many_points_has_whole_rows() -> None:
    """With no setting of a test."""
    with torch.no_grad():
        torch.compile(turned, backend=backend, options={"emulate": True, "strict": True})(torch.rand(20000, 7))
    (params,) = params_of_kernels()
    assert isinstance(params, WholeRowParams) and params.extents == (3,)


def taken_in_turn(x: Tensor) -> Tensor:
    """Positions of a roll, and a constant, both of which the backward needs, too."""
    count = torch.arange(x.shape[1], device=x.device)
    return x[:, (count + 1) % x.shape[1]] * x.exp() * (count.to(x.dtype) + 0.5).sqrt()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [moved, taken_in_turn], ids=lambda f: f.__name__)
def test_a_backward_reads_no_positions_from_memory(function: Callable[[Tensor], Tensor]) -> None:
    """They follow from no argument, so that each kernel counts them itself."""
    compare(function, torch.rand(70, 7) + 0.1, rtol=2e-5, atol=2e-6, gradient_rtol=1e-4, gradient_atol=2e-5)
    kernels = [runtime for graph in GRAPHS if graph.kind == "backward" for call in graph.calls for runtime in call.kernels()]
    assert kernels and not any(p.dtype.is_integer for k in kernels for p in k.program.params if isinstance(p, TensorParam))
