"""Rows and columns of samples, each of which one block, or cluster, reduces alone, so that no blocks meet."""

from __future__ import annotations

import pytest
import torch
from test_columns_of_samples import DTYPES, adaptive_norm_backward, adaptive_norm_in_float64, adaptive_norm_inputs, other_work_on_columns, run
from two_sided_fusions import WAYS, forced, numbers

from weft import FusionDefinition
from weft.arch import H200
from weft.options import options
from weft.schedulers.inner_outer import InnerOuterPersistent
from weft.schedulers.inner_outer_params import InnerOuterParams

ALONE = {"blocks": 1, "is_alone": True}


def params_of(fd: FusionDefinition) -> InnerOuterParams:
    (kernel,) = fd.fec.kernel_runtimes[-1:]
    return kernel.proposal.params


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_and_gives_the_same_bits_in_every_run(way):
    """11 rows of 5 samples: the last steps of a block have rows of some groups only."""
    inputs = adaptive_norm_inputs(5, 11, 512, torch.bfloat16)
    fd = adaptive_norm_backward(torch.bfloat16)
    with forced(way, **ALONE), options(check="races"):
        first = run(fd, inputs, adaptive_norm_in_float64(inputs), torch.bfloat16)
        assert all(torch.equal(a, b) for a, b in zip(first, fd.execute(inputs)))
    (kernel,) = fd.fec.kernel_runtimes
    assert not kernel.program.cooperative and "meet_grid" not in kernel.program.text


@pytest.mark.parametrize("samples, rows, columns", [(9, 2, 136), (3, 5, 128), (70, 6, 40), (2, 33, 27), (1500, 8, 32), (1, 4, 520), (11, 7, 31)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_of_few_rows_and_more_samples_than_blocks_at_once(samples, rows, columns, dtype):
    inputs = adaptive_norm_inputs(samples, rows, columns, dtype)
    fd = adaptive_norm_backward(dtype)
    with options(strict_schedules=True):
        run(fd, inputs, adaptive_norm_in_float64(inputs), dtype)
    assert params_of(fd).is_alone or rows > 5


@pytest.mark.parametrize("columns", [31, 7, 24])
def test_bias_per_head_of_short_rows_of_any_length(columns):
    """Swin: windows of 7 x 7 pixels, of which queries and heads are the samples. Keys are a part of wider rows."""
    with FusionDefinition() as fd:
        p, g = (fd.define_tensor([-1] * 4, contiguity=[True, True, True, True]) for _ in range(2))
        pg = fd.ops.mul(p, g)
        d = fd.ops.sub(pg, fd.ops.mul(p, fd.ops.sum(pg, [3], True)))
        fd.add_output(d)
        fd.add_output(fd.ops.sum(d, [0]))
    p, g = numbers(13, 3, 6, columns).softmax(3), numbers(13, 3, 6, columns)
    pg = p.double() * g.double()
    d = pg - p.double() * pg.sum(3, keepdim=True)
    run(fd, [p, g], [d, d.sum(0)], torch.float32)


@pytest.mark.parametrize("more", [{}, {"groups": 4, "lanes": 32, "threads_y": 1}, {"groups": 2, "row_unroll": 2}], ids=str)
def test_other_work_on_columns(more):
    inputs = numbers(5, 13, 128)[:, :11], numbers(5, 128), numbers(128)
    fd, wanted = other_work_on_columns(*inputs, contiguity=[False, True, True])
    with forced("loaded when needed", **{"lanes": 8, "threads_y": 4, **ALONE, **more}):
        run(fd, list(inputs), wanted, torch.float32)


@pytest.mark.parametrize("samples, rows, is_alone", [(1024, 8, True), (4000, 64, True), (32, 1024, False), (8, 64, False)])
def test_a_block_has_a_sample_alone_where_there_are_many_samples(samples, rows, is_alone):
    fusion = adaptive_norm_backward(torch.bfloat16).fusion
    shapes = [(samples, rows, 1024), (samples, rows, 1024), (samples, 1024), (samples, rows), (samples, rows)]
    sizes = {axis.sym: extent for t, shape in zip(fusion.inputs(), shapes) for axis, extent in zip(t.get_logical_domain(), shape)}
    scheduler = InnerOuterPersistent()
    analysis = scheduler.analyze(fusion)
    assert scheduler.accept(analysis, sizes, {}, H200) is None
    assert scheduler.choose(analysis, sizes, {}, H200)[0].is_alone is is_alone


def pairs_of_points() -> FusionDefinition:
    """The nearest of the other points for each point of both clouds, per sample; nothing of the size of all pairs is in memory."""
    with FusionDefinition() as fd:
        ops = fd.ops
        a, b = (fd.define_tensor([-1, -1], contiguity=True, dtype=DTYPES[torch.float32]) for _ in range(2))
        shape = [a.size(0), a.size(1), b.size(1)]
        d = ops.sub(ops.broadcast_in_dim(a, shape, [0, 1]), ops.broadcast_in_dim(b, shape, [0, 2]))
        d = ops.mul(d, d)
        for axis in (2, 1):
            fd.add_output(ops.min(d, [axis]))
    return fd


@pytest.mark.parametrize("samples, rows, columns", [(3, 37, 129), (1, 200, 64), (5, 1, 40), (2, 300, 7)])
def test_pairs_of_points(samples, rows, columns):
    a, b = numbers(samples, rows), numbers(samples, columns)
    d = (a.double()[:, :, None] - b.double()[:, None]).square()
    made = pairs_of_points().execute([a, b])
    for out, wanted in zip(made, (d.amin(2), d.amin(1)), strict=True):
        torch.testing.assert_close(out.double(), wanted, rtol=2.0**-22, atol=0)


def test_blocks_share_samples_whose_rows_are_computed():
    """A row of pairs has no bytes, but takes time: 16 blocks would have all work of a chip of 132."""
    fusion = pairs_of_points().fusion
    sizes = {axis.sym: extent for t in fusion.inputs() for axis, extent in zip(t.get_logical_domain(), (16, 2048))}
    scheduler = InnerOuterPersistent()
    analysis = scheduler.analyze(fusion)
    assert scheduler.accept(analysis, sizes, {}, H200) is None
    params = scheduler.choose(analysis, sizes, {}, H200)[0]
    assert not params.is_alone and 16 * params.blocks * params.cluster_blocks > H200.sm_count // 2
