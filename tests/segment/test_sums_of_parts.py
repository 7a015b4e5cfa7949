"""Sums of groups are computed from those of their channels where no kernel computes both and that is fewer bytes."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.graph.sums_of_parts import through_parts
from weft.ir.values import ReductionOp
from weft.options import options
from weft.runtime import steps
from weft.segment import partition

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16, torch.float64: DataType.Double}


def backward_of_groups(dtype: torch.dtype, *, with_result: bool = True) -> FusionDefinition:
    """Sums over groups [n, g] of x[n, g, c, p], of channels of each sample [n, g, c], and of channels [g, c]; a result that needs those of groups, and the sum of
    that. w[g, c] is a factor of groups."""
    wide = DataType.Double if dtype is torch.float64 else DataType.Float
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (ops.cast(fd.define_tensor([-1] * 4, dtype=TYPES[dtype]), wide) for _ in range(2))
        w = ops.broadcast_in_dim(ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=TYPES[dtype]), wide), x.shape(), [1, 2])
        scaled = ops.mul(x, w)
        level, tilt = (ops.sum(t, [2, 3], True) for t in (scaled, ops.mul(scaled, y)))
        out = ops.sub(ops.sub(scaled, level), ops.mul(y, tilt))
        for t in (ops.sum(ops.mul(y, x), [3]), ops.sum(x, [0, 3]), *([ops.sum(out, [0, 3]), out] if with_result else [level, tilt])):
            fd.add_output(t)
    return fd


def given(dtype: torch.dtype, n: int, g: int, c: int, p: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(n + g + c + p)
    whole = [torch.randn(n, g, c, p + 3, generator=made, dtype=torch.float64).to(dtype) for _ in range(2)]
    return [*(t[..., 1 : p + 1] for t in whole), torch.randn(g, c, generator=made, dtype=torch.float64).to(dtype)]


def wanted(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, y, w = x.double(), y.double(), w.double()[..., None]
    out = x * w - (x * w).sum((2, 3), keepdim=True) - y * (x * w * y).sum((2, 3), keepdim=True)
    return (x * y).sum(3), x.sum((0, 3)), out.sum((0, 3)), out


def test_each_term_is_summed_over_pixels_once() -> None:
    """x and x * y; w is multiplied with their sums, and the sum of the result is left as it is."""
    found = through_parts(normalize(backward_of_groups(torch.float32).fusion))
    assert found is not None
    sums = [e.tensor_outputs[0].get_logical_domain() for e in found.tensor_exprs() if isinstance(e, ReductionOp)]
    assert sorted([n for n, a in enumerate(axes) if a.is_reduction()] for axes in sums) == [[0], [0, 3], [2], [2], [3], [3]]


def test_sums_that_nothing_broadcasts_back_stay() -> None:
    assert through_parts(normalize(backward_of_groups(torch.float32, with_result=False).fusion)) is None


@pytest.mark.parametrize("dtype, eps", [(torch.float32, 2.0**-23), (torch.bfloat16, 2.0**-23), (torch.float64, 2.0**-52)], ids=str)
@pytest.mark.parametrize("sizes", [(3, 2, 5, 37), (2, 3, 4, 64), (1, 1, 7, 130), (5, 2, 1, 9), (2, 2, 3, 1)], ids=str)
def test_values(dtype: torch.dtype, eps: float, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the sums are cut at these sizes; launches count nothing, so that small tensors decide as large ones."""
    monkeypatch.setattr(partition, "LAUNCH_BYTES", 0)
    plans: list[partition.Plan] = []
    make_plan = steps.make_plan
    monkeypatch.setattr(steps, "make_plan", lambda *args: plans.append(make_plan(*args)) or plans[-1])
    fd, inputs = backward_of_groups(dtype), given(dtype, *sizes)
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute(inputs)
    names = [{t.name for t in step.inputs} for step in plans[-1].kernels]
    assert sum(names[0] <= own for own in names) <= 2  # not once more for the sums of groups
    x, y, w = (t.double().abs() for t in inputs)
    size = x * w[..., None] + (x * w[..., None]).sum((2, 3), keepdim=True) + y * (x * w[..., None] * y).sum((2, 3), keepdim=True)
    bounds = ((x * y).sum(3), x.sum((0, 3)), size.sum((0, 3)), size)
    terms = sizes[0] * sizes[2] * sizes[3] + 8  # additions and products behind each other, relative to the sum of the terms' magnitudes
    for out, want, bound in zip(outs, wanted(*inputs), bounds, strict=True):
        assert ((out.double() - want).abs() <= terms * eps * bound).all()
