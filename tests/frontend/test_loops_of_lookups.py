"""Lookups along rows, columns and both, in threads with several rows and vectors: positions that they share have one nest of loops, and so have the lookups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.frontend.backend import backend
from weft.schedulers import pointwise, pointwise_heuristic
from weft.schedulers.pointwise_heuristic import PointwiseParams

pytestmark = pytest.mark.usefixtures("fresh")
ROWS, COLUMNS = 37, 129


def forced(monkeypatch: pytest.MonkeyPatch, rows: int, vectors: int) -> list[PointwiseParams]:
    """Let threads have so many rows and vectors; return the list of the params that kernels get."""
    chosen: list[PointwiseParams] = []
    choose = pointwise_heuristic.choose_with_trace

    def instead(facts: Any, arch: Any) -> Any:
        params, trace = choose(facts, arch)
        place = len(facts.extents_elems) - 1
        params = replace(params, break_point=place, vector_elems=1, unroll_outer=rows, unroll_inner=vectors, bdimx=32, bdimy=2, is_left_fastest=False)
        chosen.append(params)
        return params, trace

    monkeypatch.setattr(pointwise, "choose_with_trace", instead)
    return chosen


def mirrored(fd: FusionDefinition, count: int) -> Any:
    place = fd.ops.cast(fd.ops.iota(count, dtype=DataType.Int), DataType.Int32)
    return fd.ops.abs(fd.ops.sub(place, 3))


FORCED = [(1, 1), (2, 1), (1, 4), (2, 4), (4, 2)]


@pytest.mark.parametrize("rows, vectors", FORCED)
@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous", "strided"])
def test_lookups_along_rows_and_columns(rows: int, vectors: int, is_strided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[ROWS, COLUMNS], contiguity=[not is_strided, True], dtype=DataType.Float)
        row, column = mirrored(fd, ROWS), mirrored(fd, COLUMNS)
        of_row = fd.ops.index_select(x, row, 0)
        terms = [fd.ops.index_select(x, column, 1), of_row, fd.ops.index_select(of_row, column, 1)]
        fd.add_output(fd.ops.add(fd.ops.mul(terms[0], 2.0), fd.ops.add(fd.ops.sin(terms[1]), fd.ops.mul(terms[2], terms[2]))))
    chosen = forced(monkeypatch, rows, vectors)
    given = torch.randn(ROWS, 2 * COLUMNS)[:, :COLUMNS] if is_strided else torch.randn(ROWS, COLUMNS)
    with poisoned_outputs():
        (out,) = fd.execute([given], check="races")
    assert chosen
    i, j = ((torch.arange(n) - 3).abs() for n in (ROWS, COLUMNS))
    wide = given.double()
    wanted = 2 * wide[:, j] + wide[i].sin() + wide[i][:, j] ** 2
    torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("chosen_anew")
@pytest.mark.parametrize("rows, vectors", FORCED)
def test_the_gradient_of_a_mirrored_image(rows: int, vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pixel takes places that repeat it along rows, along columns and along both."""
    chosen = forced(monkeypatch, rows, vectors)
    x = torch.randn(2, 3, 36 + rows, 64 + vectors)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    out = torch.compile(lambda t: F.pad(t, (1, 2, 3, 1), mode="reflect"), backend=backend, options={"emulate": True, "strict": True})(ours)
    slope = torch.randn_like(out)
    with poisoned_outputs():
        (got,) = torch.autograd.grad(out, [ours], slope)
    (wanted,) = torch.autograd.grad(F.pad(theirs, (1, 2, 3, 1), mode="reflect"), [theirs], slope.double())
    assert chosen
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6)
