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


def sums_of_samples_and_of_all(dtype: torch.dtype) -> FusionDefinition:
    """A mean of squares of each sample, which a weight multiplies, and a sum of magnitudes of everything: both of x - y."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (ops.cast(fd.define_tensor([-1, -1, -1], dtype=TYPES[dtype]), DataType.Float) for _ in range(2))
        w = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        apart = ops.sub(x, y)
        fd.add_output(ops.sum(ops.mul(ops.sum(ops.mul(apart, apart), [1, 2]), w), [0]))
        fd.add_output(ops.sum(ops.abs(apart), [0, 1, 2]))
    return fd


def variances_and_error(dtype: torch.dtype) -> FusionDefinition:
    """Variances of the columns of x and y, and the sum of the squares of their difference."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (ops.cast(fd.define_tensor([-1, -1], dtype=TYPES[dtype]), DataType.Float) for _ in range(2))
        for t in (x, y):
            fd.add_output(ops.var(t, [0], correction=0))
        fd.add_output(ops.sum(ops.mul(ops.sub(x, y), ops.sub(x, y)), [0, 1]))
    return fd


def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rows with a gap between them."""
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape[:-1], shape[-1] + 3, generator=made, dtype=torch.float64).to(dtype)[..., 1 : shape[-1] + 1]


@pytest.fixture(autouse=True)
def launches_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors decide as large ones."""
    monkeypatch.setattr(partition, "LAUNCH_BYTES", 0)


def how_often_read(fd: FusionDefinition) -> int:
    """Return how many kernels have read one of the first two inputs."""
    return sum(not {"T0", "T1"}.isdisjoint(p.name for p in made.program.params) for made in fd.fec.kernel_runtimes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 7, 129), (3, 16, 2048), (1, 3, 50), (200, 1, 37), (2, 300, 1)], ids=str)
def test_sums_of_samples_and_of_all_read_inputs_once(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, y, w = random(shape, dtype), random((*shape[::-1],), dtype).permute(2, 1, 0), torch.linspace(-1, 2, shape[0])
    y, fd = y.contiguous(), sums_of_samples_and_of_all(dtype)
    with poisoned_outputs(), options(check="races"):
        weighted, total = fd.execute([x, y, w])
    apart = x.double() - y.double()
    terms = 2.0**-23 * (apart[0].numel() + shape[0] + 8)  # additions behind each other
    of_samples = apart.square().sum((1, 2))
    assert abs(weighted.double() - (of_samples * w.double()).sum()) <= terms * (of_samples * w.double().abs()).sum()
    assert abs(total.double() - apart.abs().sum()) <= terms * apart.abs().sum()
    assert how_often_read(fd) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1000, 129), (4096, 64), (1, 300), (77, 1), (3, 5000)], ids=str)
def test_variances_of_columns_beside_the_sum_of_all(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, y = random(shape, dtype), random(shape[::-1], dtype).T.contiguous()
    fd = variances_and_error(dtype)
    with poisoned_outputs(), options(check="races"):
        *variances, total = fd.execute([x, y])
    for t, made in zip((x, y), variances, strict=True):
        wanted = t.double().var(0, correction=0)
        assert ((made.double() - wanted).abs() <= 2.0**-23 * (shape[0] + 8) * wanted).all()
    wanted = (x.double() - y.double()).square().sum()
    assert abs(total.double() - wanted) <= 2.0**-23 * (shape[0] + shape[1]) * wanted
    assert how_often_read(fd) == 1 or 1 in shape


def test_sums_without_an_axis_in_common_stay() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for axes in ([0], [1]):
            fd.add_output(fd.ops.sum(x, axes))
    assert through_parts(normalize(fd.fusion)) is None


def test_maxima_are_not_cut() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(x, [0]))
        fd.add_output(fd.ops.max(x, [0, 1]))
    assert through_parts(normalize(fd.fusion)) is None


@pytest.mark.parametrize("dtype, eps", [(torch.float32, 2.0**-23), (torch.bfloat16, 2.0**-23), (torch.float64, 2.0**-52)], ids=str)
@pytest.mark.parametrize("sizes", [(3, 2, 5, 37), (2, 3, 4, 64), (1, 1, 7, 130), (5, 2, 1, 9), (2, 2, 3, 1)], ids=str)
def test_values(dtype: torch.dtype, eps: float, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the sums are cut at these sizes."""
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
