"""Rows and columns of samples reduced in one kernel, as in the backward of a norm with a scale per sample, or of a softmax with a bias per head."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs
from two_sided_fusions import WAYS, forced, numbers, relative_error

from weft import DataType, FusionDefinition
from weft.arch import H100
from weft.ir.enums import SchedulerType
from weft.options import options
from weft.schedulers.base import Decline
from weft.schedulers.inner_outer import InnerOuterPersistent

# Of the largest value: the rounding of a bfloat16 result, 2^-9, twice; of float, some hundred roundings of 2^-24.
TOLERANCE = {torch.bfloat16: 2.0**-8, torch.float32: 64 * 2.0**-23}
DTYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}


def adaptive_norm_backward(dtype: torch.dtype) -> FusionDefinition:
    """The gradients of layer_norm(x) * (1 + scale) + shift, where each sample has a scale and a shift."""
    kind = DTYPES[dtype]
    with FusionDefinition() as fd:
        ops = fd.ops

        def wide(rank: int):  # noqa: ANN202
            t = fd.define_tensor([-1] * rank, contiguity=True, dtype=kind)
            return t if kind is DataType.Float else ops.cast(t, DataType.Float)

        x, g, scale = wide(3), wide(3), wide(2)
        mean, rstd = (fd.define_tensor([-1, -1, 1], contiguity=[True, True, None], dtype=DataType.Float) for _ in range(2))
        normed, inv = ops.mul(ops.sub(x, mean), rstd), ops.reciprocal(x.size(2))
        wg = ops.mul(g, ops.broadcast_in_dim(ops.add(scale, 1.0), x.shape(), [0, 2]))
        d = ops.sub(wg, ops.mul(normed, ops.mul(ops.sum(ops.mul(wg, normed), [2], True), inv)))
        d = ops.mul(ops.sub(d, ops.mul(ops.sum(wg, [2], True), inv)), rstd)
        for out in (d, ops.sum(ops.mul(g, normed), [1]), ops.sum(g, [1])):
            fd.add_output(out if kind is DataType.Float else ops.cast(out, kind))
    return fd


def adaptive_norm_inputs(samples: int, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    x, g, scale = numbers(samples, rows, columns).to(dtype), numbers(columns, rows, samples).permute(2, 1, 0).to(dtype).contiguous(), numbers(samples, columns)
    wide = x.float()
    return [x, g, scale.to(dtype), wide.mean(2, keepdim=True), (wide.var(2, correction=0, keepdim=True) + 1e-3).rsqrt()]


def adaptive_norm_in_float64(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    x, g, scale, mean, rstd = (t.double() for t in inputs)
    normed, wg = (x - mean) * rstd, g * (scale[:, None] + 1)
    d = wg - normed * (wg * normed).mean(2, keepdim=True) - wg.mean(2, keepdim=True)
    return [d * rstd, (g * normed).sum(1), g.sum(1)]


def run(fd: FusionDefinition, inputs: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    with poisoned_outputs():
        outputs = fd.execute(inputs)
    (kernel,) = fd.fec.kernel_runtimes[-1:]
    assert kernel.proposal.scheduler is SchedulerType.inner_outer_persistent and kernel.proposal.params.has_samples
    for got, expected in zip(outputs, wanted, strict=True):
        assert got.shape == expected.shape
        assert relative_error(got, expected) <= TOLERANCE[dtype]
    return outputs


@pytest.mark.parametrize("samples, rows, columns", [(1, 12, 24), (3, 9, 24), (7, 33, 28), (2, 70, 260), (5, 9, 1000), (33, 17, 8)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_a_norm_with_a_scale_per_sample(samples, rows, columns, dtype):
    inputs = adaptive_norm_inputs(samples, rows, columns, dtype)
    with options(strict_schedules=True):
        run(adaptive_norm_backward(dtype), inputs, adaptive_norm_in_float64(inputs), dtype)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_and_gives_the_same_bits_in_every_run(way):
    """35 rows over 4 blocks of each sample: the last steps have rows of some blocks only."""
    inputs = adaptive_norm_inputs(3, 35, 512, torch.bfloat16)
    fd = adaptive_norm_backward(torch.bfloat16)
    with forced(way, has_samples=True), options(check="races"):
        first = run(fd, inputs, adaptive_norm_in_float64(inputs), torch.bfloat16)
        assert all(torch.equal(a, b) for a, b in zip(first, fd.execute(inputs)))


@pytest.mark.parametrize("samples, rows, columns, reason", [(3, 2, 24, "move as many bytes"), (3, 20, 135, "begin anywhere"), (4000, 5, 24, "run at once")])
def test_samples_for_which_two_kernels_are_better(samples, rows, columns, reason):
    fusion = adaptive_norm_backward(torch.bfloat16).fusion
    x, g, scale = fusion.inputs()[:3]
    sizes = {axis.sym: extent for t in (x, g) for axis, extent in zip(t.get_logical_domain(), (samples, rows, columns))}
    sizes |= {axis.sym: extent for axis, extent in zip(scale.get_logical_domain(), (samples, columns))}
    sizes |= {axis.sym: extent for t in fusion.inputs()[3:] for axis, extent in zip(t.get_logical_domain(), (samples, rows))}
    found = InnerOuterPersistent().accept(InnerOuterPersistent().analyze(fusion), sizes, {}, H100)
    assert isinstance(found, Decline) and reason in str(found.reason)
    if samples < 100:
        inputs = adaptive_norm_inputs(samples, rows, columns, torch.bfloat16)
        for got, wanted in zip(adaptive_norm_backward(torch.bfloat16).execute(inputs), adaptive_norm_in_float64(inputs), strict=True):
            assert relative_error(got, wanted) <= TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("batch, heads, queries, keys", [(6, 2, 5, 16), (9, 3, 4, 40)])
def test_gradient_of_a_bias_per_head_beside_that_of_a_softmax(batch, heads, queries, keys):
    """The samples are heads and queries, inside of the rows."""
    with FusionDefinition() as fd:
        p, g = (fd.define_tensor([-1] * 4, contiguity=True) for _ in range(2))
        pg = fd.ops.mul(p, g)
        d = fd.ops.sub(pg, fd.ops.mul(p, fd.ops.sum(pg, [3], True)))
        fd.add_output(d)
        fd.add_output(fd.ops.sum(d, [0]))
    p, g = numbers(batch, heads, queries, keys).softmax(3), numbers(batch, heads, queries, keys + 1)[..., 1:].contiguous()
    pg = p.double() * g.double()
    d = pg - p.double() * pg.sum(3, keepdim=True)
    run(fd, [p, g], [d, d.sum(0)], torch.float32)


def other_work_on_columns(x, scale, w, contiguity):
    """Column results of several kinds meet each other, a value per sample and column, and one per column; and what they are in float64."""
    with FusionDefinition() as fd:
        ops = fd.ops
        rows = fd.define_tensor([-1] * 3, contiguity=contiguity)
        of_samples, of_columns = fd.define_tensor([-1] * 2, contiguity=True), fd.define_tensor([-1], contiguity=True)
        y = ops.mul(rows, ops.broadcast_in_dim(ops.mul(of_samples, ops.broadcast(of_columns, [True, False])), rows.shape(), [0, 2]))
        total = ops.sum(y, [2])
        fd.add_output(ops.sub(y, ops.broadcast(total, [False, False, True])))
        fd.add_output(total)
        most = ops.max(y, [1])
        fd.add_output(ops.add(ops.mul(ops.sum(ops.mul(y, rows), [1]), of_samples), most))
        fd.add_output(most)
    y = x.double() * (scale.double() * w.double())[:, None]
    return fd, [y - y.sum(2, keepdim=True), y.sum(2), (y * x.double()).sum(1) * scale.double() + y.amax(1), y.amax(1)]


@pytest.mark.parametrize("loads", ["now", "ahead", "cp_async"])
@pytest.mark.parametrize(("columns", "cluster"), [(36, 2), (512, 2), (36, 4), (1000, 4)])
def test_a_cluster_shares_rows_beside_a_value_per_column(columns, cluster, loads):
    """Pieces of rows are rounded up, so that their vectors alone do not tell that those of the row are whole: the host checks it."""
    inputs = numbers(5, 11, columns), numbers(5, columns), numbers(columns)
    fd, wanted = other_work_on_columns(*inputs, contiguity=True)
    stages = 3 if loads == "cp_async" else 1
    values = dict(has_samples=True, is_alone=False, cluster_blocks=cluster, blocks=2, fill="partial", loads=loads, stages=stages)
    with forced("loaded when needed", **values), options(strict_schedules=True):
        run(fd, list(inputs), wanted, torch.float32)
    rows = fd.fusion.inputs()[0].get_logical_domain()[2].sym
    assert (rows, 4) in [(check.extent, check.divisor) for check in fd.fec.kernel_runtimes[-1].program.checks]


def test_an_exchange_in_nested_loops_makes_no_kernel():
    """Two blocks of a sample that one cluster has alone: nothing would count the rounds of their exchange."""
    inputs = numbers(5, 11, 36), numbers(5, 36), numbers(36)
    fd, _ = other_work_on_columns(*inputs, contiguity=True)
    values = dict(has_samples=True, is_alone=True, cluster_blocks=2, blocks=2, fill="partial")
    with forced("loaded when needed", **values), options(strict_schedules=True), pytest.raises(RuntimeError, match="no barrier counts its rounds"):
        fd.execute(list(inputs))


def test_other_work_on_columns_of_samples():
    inputs = numbers(5, 11, 36), numbers(5, 36), numbers(36)
    fd, wanted = other_work_on_columns(*inputs, contiguity=True)
    run(fd, list(inputs), wanted, torch.float32)
