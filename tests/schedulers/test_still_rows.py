"""Rows of a pointwise kernel that share values: tables and angles without the axis of heads, which a thread loads or computes once for its heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.graph.normalize import normalize
from weft.schedulers import pointwise
from weft.schedulers.pointwise_analysis import analyze_pointwise
from weft.schedulers.pointwise_heuristic import choose

BF16, FLOAT, DOUBLE, INT = DataType.BFloat16, DataType.Float, DataType.Double, DataType.Int
TORCH = {BF16: torch.bfloat16, FLOAT: torch.float32, DOUBLE: torch.float64, INT: torch.int64}
SIZES = [(2, 3, 16, 32), (1, 5, 7, 40), (3, 1, 1, 24), (2, 9, 4, 1), (1, 1, 1, 1), (2, 4, 0, 8)]


def forced(monkeypatch: pytest.MonkeyPatch, position: int, **fields: Any) -> None:
    """Let threads have rows that share values, where loops of one iteration leave any."""
    old = pointwise.choose_with_trace

    def find(facts: Any, arch: Any) -> Any:
        params, trace = old(facts, arch)
        at = min(position, max(0, len(facts.extents_elems) - 1))
        shares = bool(at) and facts.still_rows[at] is not None
        given = fields if at else {**fields, "unroll_outer": 1, "bdimy": 1}
        return replace(params, break_point=at, **given, shares_rows=shares, split_grid_y=False, is_left_fastest=False, is_phased=False), trace

    monkeypatch.setattr(pointwise, "choose_with_trace", find)


def turned(dtype: DataType, *, heads_inside: bool, computes: bool) -> FusionDefinition:
    """Heads times the cosine of an angle that they share, from a table or from the position. heads_inside: they lie behind the positions in memory."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1, -1], contiguity=True, dtype=dtype)
        table = fd.define_tensor([-1, -1] if computes else [-1, -1, -1], contiguity=True, dtype=INT if computes else dtype)
        if computes:
            steps = fd.ops.cast(fd.ops.iota(fd.ops.size(x, 3), 1, 1, dtype=INT), FLOAT)
            steps = fd.ops.broadcast(steps, [True, True, False])
            angles = fd.ops.mul(fd.ops.broadcast(fd.ops.cast(table, FLOAT), [False, False, True]), fd.ops.reciprocal(steps))
        else:
            angles = table if dtype is DOUBLE else fd.ops.cast(table, FLOAT)
        factor = fd.ops.broadcast(fd.ops.cos(angles), [False, False, True, False] if heads_inside else [False, True, False, False])
        y = fd.ops.mul(x if dtype is DOUBLE else fd.ops.cast(x, FLOAT), factor)
        fd.add_output(y if dtype is DOUBLE else fd.ops.cast(y, dtype))
    return fd


def inputs_of(dtype: DataType, sizes: tuple[int, ...], *, heads_inside: bool, computes: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(sizes))
    batch, heads, positions, width = sizes
    x = torch.randn((batch, positions, heads, width) if heads_inside else sizes, generator=generator).to(TORCH[dtype])
    if computes:
        return [x, torch.randint(0, 50, (batch, positions), generator=generator)]
    return [x, torch.randn(batch, positions, width, generator=generator).to(TORCH[dtype])]


def wanted(x: torch.Tensor, table: torch.Tensor, *, heads_inside: bool) -> torch.Tensor:
    angles = table.double()
    if not table.is_floating_point():
        angles = angles[..., None] / torch.arange(1, x.shape[3] + 1)
    return x.double() * angles.cos().unsqueeze(2 if heads_inside else 1)


SHAPES = [(BF16, 8, 4, 2, False), (BF16, 1, 2, 1, True), (FLOAT, 4, 8, 1, True), (FLOAT, 1, 4, 4, False), (FLOAT, 4, 4, 2, True), (FLOAT, 4, 3, 2, True), (BF16, 2, 7, 1, False), (DOUBLE, 2, 2, 2, False)]


@pytest.mark.parametrize("heads_inside", [False, True])
@pytest.mark.parametrize(("dtype", "vector", "rows", "bdimy", "computes"), SHAPES, ids=str)
def test_heads_share_what_has_no_heads(
    monkeypatch: pytest.MonkeyPatch, dtype: DataType, vector: int, rows: int, bdimy: int, heads_inside: bool, computes: bool
) -> None:
    """Numbers of heads that do and do not divide by the rows of a thread."""
    position = 3 if heads_inside else 2
    forced(monkeypatch, position, vector_elems=vector, unroll_outer=rows, unroll_inner=1, bdimx=8, bdimy=bdimy)
    roundoff = {BF16: 2.0**-8, FLOAT: 2.0**-20, DOUBLE: 2.0**-50}[dtype]
    fd = turned(dtype, heads_inside=heads_inside, computes=computes)
    for sizes in SIZES:
        if sizes[3] % vector:
            continue
        x, table = inputs_of(dtype, sizes, heads_inside=heads_inside, computes=computes)
        with poisoned_outputs():
            (out,) = fd.execute([x, table], check="races")
        want = wanted(x, table, heads_inside=heads_inside)
        assert out.shape == x.shape and ((out.double() - want).abs() <= roundoff * (x.double().abs() + 1e-3)).all(), sizes
        params = fd.fec.kernel_runtimes[-1].proposal.params
        assert 1 in sizes or not x.numel() or params.shares_rows and params.unroll_outer == rows


def test_cosines_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the loop over the rows of a thread, also where a thread's rows are those of the only loop on the left."""
    forced(monkeypatch, 2, vector_elems=4, unroll_outer=4, unroll_inner=1, bdimx=8, bdimy=1)
    fd = turned(FLOAT, heads_inside=False, computes=True)
    x, places = inputs_of(FLOAT, (2, 8, 5, 32), heads_inside=False, computes=True)
    fd.execute([x, places])
    text = fd.fec.kernel_runtimes[-1].program.text
    assert text.count("cos(") == 1
    depth_of_cosine = len((line := next(row for row in text.splitlines() if "cos(" in row))) - len(line.lstrip())
    depth_of_product = len((line := next(row for row in text.splitlines() if "store_global_vector" in row))) - len(line.lstrip())
    assert depth_of_cosine == depth_of_product, text  # one in the loop over a vector, the other in that over rows


@pytest.mark.parametrize(("heads_inside", "position"), [(True, 3), (False, 2)])
def test_the_choice(heads_inside: bool, position: int) -> None:
    """Where angles are computed, several heads share them; a product with a scalar, which nothing is shared in, keeps one row per thread."""
    arch = arch_by_name("H200")
    fd = turned(BF16, heads_inside=heads_inside, computes=True)
    analysis = analyze_pointwise(normalize(fd.fusion))
    sizes = (4, 32, 4096, 128)
    names = [a.sym for t in analysis.axes.fusion.inputs()[:1] for a in t.get_logical_domain()]
    extents = [sizes[0], *((sizes[2], sizes[1]) if heads_inside else (sizes[1], sizes[2])), sizes[3]]
    env = dict(zip(names, extents))
    others = [a.sym for t in analysis.axes.fusion.inputs()[1:2] for a in t.get_logical_domain()]
    env.update(zip(others, (sizes[0], sizes[2])))
    params = choose(analysis.facts(env, {}), arch)
    assert params.shares_rows and params.break_point == position and params.unroll_outer >= 4


def test_a_thread_has_all_rows_of_a_short_loop() -> None:
    """The colors of an image times a weight that costs much, the same for each: computed once for all of them, and no thread is idle."""
    colors = 3
    arch = arch_by_name("H200")
    analysis = analyze_pointwise(normalize(turned(FLOAT, heads_inside=False, computes=True).fusion))
    env = {}
    for tensor, sizes in zip(analysis.axes.fusion.inputs(), ((16, colors, 4096, 128), (16, 4096))):
        env.update(zip([a.sym for a in tensor.get_logical_domain()], sizes))
    params = choose(analysis.facts(env, {}), arch)
    assert params.shares_rows and params.unroll_outer == colors
