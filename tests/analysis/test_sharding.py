"""Axes along which a definition can be computed shard by shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft import FusionDefinition
from weft.analysis.sharding import shardable_axes


def axes_of(define: Callable[..., Any], *ranks: int) -> list[tuple[int | None, ...]]:
    """Return for each axis that can be cut its dimensions in the inputs, then in the outputs."""
    with FusionDefinition() as fd:
        results = define(fd.ops, *[fd.define_tensor([-1] * rank, contiguity=True) for rank in ranks])
        for result in results if isinstance(results, tuple) else (results,):
            fd.add_output(result)
    return [(*axis.inputs, *axis.outputs) for axis in shardable_axes(fd.fusion)]


CASES: list[tuple[str, Callable[..., Any], tuple[int, ...], list[tuple[int | None, ...]]]] = [
    ("pointwise: all", lambda o, a, b: o.relu(a + b), (2, 2), [(0, 0, 0), (1, 1, 1)]),
    ("a row beside a matrix", lambda o, a, w: a * w, (2, 1), [(0, None, 0), (1, 0, 1)]),
    ("a norm: not along the row", lambda o, a, w: o.rms_norm(a, [-1], w, 1e-6), (3, 1), [(0, None, 0), (1, None, 1)]),
    ("what one output lacks", lambda o, a: (o.exp(a), o.sum(a, [0])), (2,), [(1, 1, 0)]),
    ("permuted", lambda o, a: o.permute(a, [1, 0]) * 2.0, (2,), [(0, 1), (1, 0)]),
    ("a scan: not along it", lambda o, a: o.cumsum(a, 1), (2,), [(0, 0)]),
    ("a mask of positions", lambda o, a: o.where(o.causal_mask(a.size(1), a.size(2)), a, 0.0), (3,), [(0, 0)]),
    ("a slice: not along it", lambda o, a: a[:, :2] * 2.0, (2,), [(0, 0)]),
    ("joined", lambda o, a, b: o.cat([a, b], 1) * 2.0, (2, 2), [(0, 0, 0)]),
    ("a size that is a value", lambda o, a: a * a.size(0), (2,), [(1, 1)]),
    ("random numbers", lambda o, a: o.dropout(a, 0.5), (2,), []),
]


@pytest.mark.parametrize(("define", "ranks", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_axes_that_can_be_cut(define: Callable[..., Any], ranks: tuple[int, ...], wanted: list[tuple[int | None, ...]]) -> None:
    assert axes_of(define, *ranks) == wanted


def test_reshapes_and_products_are_not_cut() -> None:
    assert axes_of(lambda o, a: o.reshape(a, [a.size(0) * a.size(1)]) * 2.0, 2) == []
    assert axes_of(lambda o, a, b: o.matmul(a, b), 2, 2) == []
