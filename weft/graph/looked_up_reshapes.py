"""Reshapes without a common factorization as lookups: each element is computed where it is read, instead of being written to memory in between.

Such are interleaved pairs that a cat puts behind other columns (rotary positions of a part of a head), sines and cosines behind what they encode, and nine
stacked numbers as a matrix of three by three. Positions are quotients and remainders by constants, and elements are read one by one, so it pays only where
many bytes are saved: `weft.segment.partition` compares. Read first: `reshapes_looked_up`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..dtypes import DataType
from ..expr import ZERO
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, Fixed, LookupOp, Position, ReshapeOp
from ..ir.values import Expr, IterDomain, TensorView
from ..ops.build import broadcast, logical_axes, pointwise
from ..ops.factories import iota
from .few_terms import term_by_term
from .lookups import move_lookups_up
from .moved_lookups import is_moved


def reshapes_looked_up(fusion: Fusion) -> Fusion | None:
    """Return a copy of a fusion whose reshapes of computed tensors are lookups, and whose folds of few terms are pointwise; None if there is no such reshape.

    Results keep their names; the values are the same, except that sums of few terms are rounded in their order.
    """
    names = [e.tensor_outputs[0].name for e in fusion.tensor_exprs() if _is_computed(e)]
    if not names:
        return None
    copy, _ = fusion.clone()
    reshapes = {e.tensor_outputs[0].name: e for e in copy.tensor_exprs() if isinstance(e, ReshapeOp)}
    for name in names:
        _look_up(copy, reshapes[name])
    move_lookups_up(copy)
    return term_by_term(copy) or copy


def _is_computed(expr: Expr) -> bool:
    """True for a reshape of known sizes, of what a lookup moves through, whose result is no output."""
    if not isinstance(expr, ReshapeOp):
        return False
    source, out = expr.tensor_inputs[0], expr.tensor_outputs[0]
    axes = [*logical_axes(source), *logical_axes(out)]
    is_known = all(a.sym.is_const and a.expanded_extent is None and a.sym.value for a in axes)
    return is_known and is_moved(source.definition()) and not out.is_fusion_output


def _look_up(fusion: Fusion, reshape: ReshapeOp) -> None:
    source, out = reshape.tensor_inputs[0], reshape.tensor_outputs[0]
    axes, mine = logical_axes(source), logical_axes(out)
    positions: list[Position] = [Fixed(ZERO)] * len(axes)
    inputs: list[TensorView] = [source]
    for old, new in _groups(axes, mine):
        if len(old) == len(new) == 1:
            positions[old[0]] = Along(new[0])
            continue
        place = _linear(fusion, mine, new)
        for number, dim in enumerate(old):
            inner = math.prod(_extent(axes[d]) for d in old[number + 1 :])
            index = place if inner == 1 else pointwise(fusion, "div", place, inner)
            index = index if number == 0 else pointwise(fusion, "remainder", index, _extent(axes[dim]))
            positions[dim] = At(len(inputs))
            inputs.append(index)  # type: ignore[arg-type]
    found = fusion.new_tensor([fusion.copy_axis(a) for a in mine], out.dtype())
    fusion.register(LookupOp(inputs, [found], op="gather", positions=tuple(positions), is_masked=False))
    for use in list(out.uses()):
        fusion.replace_input(use, out, found)
    fusion.remove(reshape)


def _groups(old: list[IterDomain], new: list[IterDomain]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest runs of axes of both sides, without those of one element, that have equally many elements."""
    sides = [[d for d, a in enumerate(axes) if not a.is_broadcast()] for axes in (old, new)]
    while sides[0]:
        runs = [sides[0].pop(0)], [sides[1].pop(0)]
        counts = [_extent(axes[run[0]]) for axes, run in zip((old, new), runs)]
        while counts[0] != counts[1]:
            short = int(counts[1] < counts[0])
            runs[short].append(sides[short].pop(0))
            counts[short] *= _extent((old, new)[short][runs[short][-1]])
        yield runs


def _linear(fusion: Fusion, axes: list[IterDomain], dims: list[int]) -> TensorView:
    """Return the row-major number of an element among those along some axes, of the rank of all of them."""
    counts = [_extent(axes[d]) for d in dims]
    kind = DataType.Int32 if math.prod(counts) < 2**31 else DataType.Int
    total: TensorView | None = None
    for number, dim in enumerate(dims):
        row = iota(fusion, fusion.new_scalar(axes[dim].logical_extent, DataType.Int), None, None, kind)
        row = broadcast(fusion, row, [d != dim for d in range(len(axes))]) if len(axes) > 1 else row
        scaled = pointwise(fusion, "mul", row, math.prod(counts[number + 1 :])) if number + 1 < len(dims) else row
        total = scaled if total is None else pointwise(fusion, "add", total, scaled)  # type: ignore[assignment]
    assert total is not None
    return total


def _extent(axis: IterDomain) -> int:
    return int(axis.sym.value)  # type: ignore[arg-type]


__all__ = ["reshapes_looked_up"]
