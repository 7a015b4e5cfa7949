"""What is compared with its own elements has the same bits wherever it is computed: products are rounded before they are added to anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType as D
from weft import FusionDefinition
from weft.analysis.compared import compared_with_own
from weft.graph.normalize import normalize
from weft.options import options

Defined = tuple[Any, list[Any]]


def _turned(fd: FusionDefinition, x: Any, n: int) -> Any:
    """Pairs of neighbours, turned by an angle for each pair, and the differences of neighbours."""
    o, half = fd.ops, n // 2
    angles = o.mul(o.cast(o.iota(half, 0, 1, D.Int), D.Float), 0.37)
    cos, sin = (o.broadcast(f(angles), [True, False]) for f in (o.cos, o.sin))
    pairs = o.reshape(x, [x.size(0), half, 2])
    a, b = (o.squeeze(o.slice(pairs, [0, 0, k], [x.size(0), half, k + 1]), [2]) for k in (0, 1))
    parts = o.sub(o.mul(a, cos), o.mul(b, sin)), o.add(o.mul(b, cos), o.mul(a, sin))
    whole = o.reshape(o.cat([o.broadcast(p, [False, False, True]) for p in parts], 2), [x.size(0), n])
    return o.sub(o.slice(whole, [0, 1], [x.size(0), n]), o.slice(whole, [0, 0], [x.size(0), n - 1]))


def _mixed(fd: FusionDefinition, x: Any, n: int) -> Any:
    """An element and the next one, weighted."""
    o = fd.ops
    place = o.remainder(o.add(o.iota(n, 0, 1, D.Int), 1), n)
    return o.sub(o.mul(x, 1.3), o.mul(o.index_select(x, place, 1), 0.37))


@pytest.mark.parametrize("partition", ["best", "single"])
@pytest.mark.parametrize(("rows", "n"), [(1, 4), (24, 4), (5, 6), (33, 12), (0, 4)])
@pytest.mark.parametrize("made", [_turned, _mixed])
def test_no_element_is_larger_than_itself(made: Callable[..., Any], rows: int, n: int, partition: str) -> None:
    """Ranks of each row, from the numbers that the call itself gives."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, n], contiguity=True)
        y = made(fd, x, n)
        over = fd.ops.gt(fd.ops.broadcast(y, [False, False, True]), fd.ops.broadcast(y, [False, True, False]))
        fd.add_output(y)
        fd.add_output(fd.ops.sum(fd.ops.cast(over, D.Int), [2]))
    given = torch.randn(rows, n)
    with poisoned_outputs(), options(check="races", strict_schedules=True, partition=partition):
        found, ranks = fd.execute([given])
    assert torch.equal(ranks, (found[:, :, None] > found[:, None]).sum(2))
    with FusionDefinition() as alone:
        z = alone.define_tensor([-1, n], contiguity=True)
        alone.add_output(made(alone, z, n))
    alone.validate([given])


def test_products_that_are_rounded() -> None:
    """Those that are added to something that is compared with itself, unless a factor is a power of two."""

    def names(compare: bool, factor: float = 1.3) -> list[str]:
        with FusionDefinition() as fd:
            x, b = fd.define_tensor([-1, 8], contiguity=True), fd.define_tensor([-1, 8], contiguity=True)
            y = fd.ops.add(fd.ops.mul(x, factor), b)
            limit = fd.ops.broadcast(fd.ops.max(y, [1]), [False, True])
            fd.add_output(fd.ops.where(fd.ops.ge(y, limit), y, 0.0) if compare else fd.ops.sub(y, limit))
        fusion = normalize(fd.fusion)  # type: ignore[arg-type]
        assert bool(compared_with_own(fusion)) is compare
        return [e.op_name for e in fusion.tensor_exprs() if "mul" in getattr(e, "op_name", "")]

    assert names(True) == ["rounded_mul"]
    assert names(False) == names(True, 0.25) == ["mul"]
