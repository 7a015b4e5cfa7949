"""The shape of a fusion's reductions: which loops they fold, in which runs these lie, and whether the innermost one is folded.

Owns the grouping of reductions by the loops that they fold, and the order of the loops. Persistent buffers are in `persistent.py`.
Read first: `reduction_shapes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.fusion import Fusion
from ..ir.values import Expr, ReductionOp, SqueezeOp, TensorView, WelfordOp, no_reductions
from .lookups import loads
from .loop_axes import LoopAxes, Obstacle, loop_order


@dataclass(frozen=True)
class Run:
    """Neighbouring loops that are all reduced, or all not. `classes` outermost first."""

    is_reduction: bool
    classes: tuple[int, ...]

    def extent_elems(self, extents: Sequence[int]) -> int:
        return math.prod(extents[c] for c in self.classes)


@dataclass(frozen=True)
class ReductionShape:
    """Reductions that reduce the same loops.

    reductions: the expressions, in order. reference: the output of the first, whose logical domain has every loop.
    order: the loops in the memory order of most data, outermost first. runs: `order` divided into runs of reduced and of other loops.
    """

    reductions: tuple[Expr, ...]
    reference: TensorView
    order: tuple[int, ...]
    reduced: frozenset[int]
    runs: tuple[Run, ...]

    @property
    def is_inner(self) -> bool:
        """True if the innermost loop in memory is reduced."""
        return bool(self.runs) and self.runs[-1].is_reduction

    @property
    def inner_position(self) -> int:
        """Position in `order` where the innermost run starts."""
        return len(self.order) - len(self.runs[-1].classes) if self.runs else 0


def reduction_exprs(fusion: Fusion) -> list[Expr]:
    """Return the reductions, definitions before uses."""
    return [e for e in fusion.tensor_exprs() if isinstance(e, (ReductionOp, WelfordOp))]


def reduced_classes(expr: Expr, axes: LoopAxes) -> frozenset[int]:
    """Return the loops that a reduction reduces; loops of one iteration have no class and are omitted."""
    numbers = (axes.of(a) for a in expr.outputs[0].get_maybe_root_domain() if a.is_reduction())  # type: ignore[attr-defined]
    return frozenset(n for n in numbers if n is not None)


def reduction_shapes(fusion: Fusion, axes: LoopAxes) -> tuple[ReductionShape, ...] | Obstacle:
    """Group the reductions by the loops that they reduce; the groups are in order of their first reduction. Errors: an Obstacle if loops conflict, or if a
    reduction lacks a loop of another one.
    """
    if axes.conflict:
        return Obstacle(axes.conflict)
    groups: dict[frozenset[int], list[Expr]] = {}
    for expr in reduction_exprs(fusion):
        groups.setdefault(reduced_classes(expr, axes), []).append(expr)
    if not groups:
        return Obstacle("nothing is reduced")
    inputs = loads(fusion)
    covers = {axes.concrete(e.outputs[0]) for members in groups.values() for e in members}  # type: ignore[arg-type]
    if len(covers) != 1:
        return Obstacle("the reductions do not all run over the same axes")
    shapes = []
    for reduced, members in groups.items():
        reference: TensorView = members[0].outputs[0]  # type: ignore[assignment]
        present = axes.concrete(reference)
        order = loop_order(axes, [n for n in axes.logical_order(reference) if n in present], inputs)
        runs: list[Run] = []
        for number in order:
            if runs and runs[-1].is_reduction == (number in reduced):
                runs[-1] = Run(runs[-1].is_reduction, (*runs[-1].classes, number))
            else:
                runs.append(Run(number in reduced, (number,)))
        shapes.append(ReductionShape(tuple(members), reference, order, reduced, tuple(runs)))
    return tuple(shapes)


def without_rows(fusion: Fusion, axes: LoopAxes, shape: ReductionShape) -> TensorView | None:
    """Return a tensor that lacks squeezed broadcast axes which other tensors iterate in kept loops, so that it cannot share these loops; None if there is none.
    Two cases: a tensor along the reduced loops, whose operand's loops begin with those axes, so they have no common loop; and a tensor that lacks several axes
    of the run that is split into vectors, because the loops around it do not determine its index.
    """
    kept = frozenset(shape.order) - shape.reduced
    in_vectors = frozenset(() if shape.is_inner else shape.runs[-1].classes)
    lost: dict[TensorView, frozenset[int | None]] = {}
    for expr in fusion.tensor_exprs():
        gone = frozenset().union(*(lost.get(t, frozenset()) for t in expr.tensor_inputs))
        if isinstance(expr, SqueezeOp):
            operand = no_reductions(expr.tensor_inputs[0].get_logical_domain())
            gone |= kept & {axes.of(axis) for axis, is_lost in zip(operand, expr.attributes["flags"], strict=True) if is_lost}
        for tensor in expr.tensor_outputs if gone else ():
            lost[tensor] = mine = gone - axes.concrete(tensor)
            if mine and axes.stored(tensor) & shape.reduced or len(mine & in_vectors) > 1 and axes.stored(tensor):
                return tensor
    return None
