"""Positions that a definition counts once and uses along two axes: each axis gets its own, so that one kernel computes what they mask or select."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.values import IotaOp
from weft.options import options


def causal(fd: FusionDefinition, x: Any, n: int) -> Any:
    """Elements at and below the diagonal."""
    place = fd.ops.iota(n, dtype=DataType.Int32)
    rows, columns = fd.ops.broadcast(place, [False, True]), fd.ops.broadcast(place, [True, False])
    return fd.ops.where(fd.ops.le(columns, rows), x, 0.0)


def distances(fd: FusionDefinition, x: Any, n: int) -> Any:
    """What is computed from positions is shared, too, and one is used twice."""
    place = fd.ops.add(fd.ops.cast(fd.ops.iota(n, dtype=DataType.Int32), DataType.Float), 0.5)
    scaled = fd.ops.mul(place, place)
    return fd.ops.add(fd.ops.mul(x, fd.ops.broadcast(scaled, [False, True])), fd.ops.sub(fd.ops.broadcast(scaled, [True, False]), place))


def turned(fd: FusionDefinition, x: Any, n: int) -> Any:
    """A lookup along each axis, by the same index."""
    place = fd.ops.sub(n - 1, fd.ops.iota(n, dtype=DataType.Int))
    return fd.ops.index_select(fd.ops.index_select(x, place, 0), place, 1)


def _distances(x: torch.Tensor) -> torch.Tensor:
    place = torch.arange(x.shape[0]).double() + 0.5
    return x * place[:, None].square() + place.square() - place


CASES: dict[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]] = {causal: torch.tril, distances: _distances, turned: lambda x: x.flip(0, 1)}


@pytest.mark.parametrize("n", [1, 2, 17, 64, 133])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("is_summed", [False, True])
def test_one_kernel_computes_them(case: Callable[..., Any], n: int, is_summed: bool) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([n, n], contiguity=True)
        out = case(fd, x, n)
        fd.add_output(fd.ops.sum(out, [1]) if is_summed else out)
    x = torch.randn(n, n)
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x])
    want = CASES[case](x.double())
    want = want.sum(1) if is_summed else want
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
    assert len(fd.fec.kernel_runtimes) == 1


def test_positions_that_are_an_output_stay() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([6, 6], contiguity=True)
        place = fd.ops.iota(6, dtype=DataType.Int32)
        fd.add_output(place)
        fd.add_output(fd.ops.where(fd.ops.le(fd.ops.broadcast(place, [True, False]), fd.ops.broadcast(place, [False, True])), x, 0.0))
    x = torch.randn(6, 6)
    places, got = fd.execute([x])
    assert torch.equal(places, torch.arange(6, dtype=torch.int32)) and torch.equal(got, x.tril())


def test_positions_along_one_axis_are_counted_once() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 8], contiguity=True)
        place = fd.ops.iota(8, dtype=DataType.Int32)
        fd.add_output(fd.ops.where(fd.ops.le(place, 3), x, fd.ops.cast(place, DataType.Float)))
    assert sum(isinstance(e, IotaOp) for e in normalize(fd.fusion).tensor_exprs()) == 1
