"""Axes that are made of axes: what a merge of expanded axes runs over."""

from __future__ import annotations

import pytest

from weft import FusionDefinition
from weft.expr import const
from weft.ir.enums import IterType
from weft.schedule.transforms import merge_axes


@pytest.mark.parametrize(("outer", "inner", "expected"), [(None, None, None), (3, None, 3), (None, 5, 5), (3, 5, 15)])
def test_merged_broadcast_axes_are_expanded_as_far_as_both(outer: int | None, inner: int | None, expected: int | None) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([-1], contiguity=True))
    fusion = fd.fusion
    assert fusion is not None
    axes = [fusion.new_axis(1, IterType.broadcast, expanded_extent=None if n is None else const(n)) for n in (outer, inner)]
    out = merge_axes(fusion, *axes).out()
    assert out.iter_type is IterType.broadcast and out.sym is const(1)
    assert out.expanded_extent is (None if expected is None else const(expected))


def test_an_expanded_axis_merged_with_a_loop_is_a_loop_over_both() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([-1], contiguity=True))
    fusion = fd.fusion
    assert fusion is not None
    out = merge_axes(fusion, fusion.new_axis(1, IterType.broadcast), fusion.new_axis(7)).out()
    assert (out.iter_type, out.expanded_extent, out.sym) == (IterType.iteration, None, const(7))
