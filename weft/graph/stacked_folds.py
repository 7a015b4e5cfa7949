"""Folds of stacked tensors, term by term: the sum over the axis that stack([a, b, c]) adds is a + b + c, and max(f(stack(a, b)) - g(stack(c, d))) is
max(f(a) - g(c), f(b) - g(d)).

Shifted neighbours of an image and maps of several scales are stacked to be compared and folded at once. As a selection by position, each element of the stack
would be computed as if it were any of them. Term by term each is computed once, without a loop, and the result has the loops of what reads it.
Owns which folds these are, and the rewriting. Read first: `fold_stacks`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..analysis.axes import TIE
from ..analysis.op_cost import cost_of
from ..expr import ZERO, const
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, CatOp, Fixed, LookupOp, Position
from ..ir.values import BroadcastOp, Expr, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorView, Val
from ..ops.build import broadcast, is_plain_broadcast, logical_axes, pointwise
from ..ops.shapes import squeeze
from .few_terms import OPS
from .made_reductions import reduce_like, release_result

MOST_TERMS = 64
"""Tensors of a stack: 7x7 neighbours, and more. Each term is text of its own, which is compiled."""
MOST_INSTRUCTIONS = 6000
"""Instructions of all terms, without what the stacked tensors are computed by, which is text of its own in any case. An estimate: as many as a kernel of some
seconds in the compiler has."""


@dataclass(frozen=True)
class Stacked:
    """A fold of what is computed from stacks. dim: their axis in the fold's operand. dims: that axis in each tensor from the stacks to the fold. exprs: what
    computes these."""

    fold: ReductionOp
    dim: int
    dims: dict[TensorView, int]
    exprs: tuple[Expr, ...]

    @property
    def terms(self) -> int:
        return _extent(self.fold.tensor_inputs[0], self.dim)


def fold_stacks(fusion: Fusion) -> None:
    """Replace folds of stacked tensors by ops of their terms, in place, where nothing else needs the stack.

    Before: no axis is open; cats are `CatOp`. After: results keep their names; a fold over more axes folds the others behind. Sums are rounded in the order
    of their terms.
    """
    if not any(isinstance(e, CatOp) for e in fusion.tensor_exprs()):
        return
    for found in _without_other_readers(fusion, [s for e in fusion.tensor_exprs() if (s := _stacked(e)) is not None]):
        _replace(fusion, found)


def _stacked(expr: Expr) -> Stacked | None:
    """Return a fold of stacks with what is between, if it has few terms."""
    if not isinstance(expr, ReductionOp) or expr.attributes["kind"] not in OPS or len(expr.inputs) != 1 or TIE in expr.attributes:
        return None
    source, out = expr.tensor_inputs[0], expr.tensor_outputs[0]
    if source.dtype() is not out.dtype() or source.has_root():
        return None
    for dim, axis in enumerate(out.get_logical_domain()):
        if axis.is_reduction() and 1 < _extent(source, dim) <= MOST_TERMS:
            dims, exprs = _between(source, dim)
            if exprs and cost_of(exprs, ()).slots * _extent(source, dim) <= MOST_INSTRUCTIONS:
                return Stacked(expr, dim, dims, tuple(exprs))
    return None


def _extent(tensor: TensorView, dim: int) -> int:
    """Return the elements of an axis; 0 if their number is not known or they are one, repeated."""
    axis = logical_axes(tensor)[dim]
    return 0 if axis.is_broadcast() or not axis.sym.is_const else int(axis.sym.value)  # type: ignore[arg-type]


def _between(source: TensorView, dim: int) -> tuple[dict[TensorView, int], list[Expr]]:
    """Return the tensors from stacks to `source`, each with its axis that is `dim` there, and what computes them, producers first; nothing if there is none."""
    dims, exprs, known = dict[TensorView, int](), list[Expr](), dict[TensorView, bool]()

    def has_stack(tensor: TensorView, d: int) -> bool:
        above = tensor.definition()
        if tensor not in known:
            operands = [] if above is None or isinstance(above, CatOp) else _operands(above, d)
            known[tensor] = any([has_stack(v, n) for v, n in operands]) or _is_stack(above, d)
            if known[tensor] and above is not None:
                dims[tensor] = d
                exprs.append(above)
        return known[tensor]

    has_stack(source, dim)
    return dims, exprs


def _is_stack(expr: Expr | None, dim: int) -> bool:
    return isinstance(expr, CatOp) and expr.attributes["dim"] == dim and all(is_plain_broadcast(logical_axes(v)[dim]) for v in expr.tensor_inputs)


def _operands(expr: Expr, dim: int) -> list[tuple[TensorView, int]]:
    """Return the operands of an op that keeps the axis `dim` of its result, each with its place there; those that have no such axis are left out."""
    (out,), found = expr.tensor_outputs[:1], list[tuple[TensorView, int]]()
    if isinstance(expr, PointwiseOp) or isinstance(expr, LoadStoreOp) and not out.has_root():
        found = [(v, dim) for v in expr.tensor_inputs]
    elif isinstance(expr, BroadcastOp) and not expr.attributes["flags"][dim]:
        found = [(expr.tensor_inputs[0], dim - sum(expr.attributes["flags"][:dim]))]
    elif isinstance(expr, SqueezeOp):
        found = [(expr.tensor_inputs[0], [d for d, is_dropped in enumerate(expr.attributes["flags"]) if not is_dropped][dim])]
    return [(v, d) for v, d in found if not logical_axes(v)[d].is_broadcast()]


def _without_other_readers(fusion: Fusion, found: list[Stacked]) -> list[Stacked]:
    """Return the folds all of whose tensors are read by such folds alone: a stack that is also stored is computed as a whole."""
    outputs, alive = set(fusion.outputs()), set(fusion.tensor_exprs())

    def is_alone(tensor: TensorView, inside: Collection[Expr]) -> bool:
        return tensor not in outputs and all(use in inside for use in tensor.uses() if use in alive)

    while True:
        inside = {e for s in found for e in (s.fold, *s.exprs)}
        kept = [s for s in found if all(is_alone(t, inside) for t in s.dims)]
        if len(kept) == len(found):
            return kept
        found = kept


def _replace(fusion: Fusion, found: Stacked) -> None:
    """Compute the result of a fold from its terms."""
    fold, dim = found.fold, found.dim
    out = fold.tensor_outputs[0]
    folded = [axis.is_reduction() for axis in out.get_logical_domain()]
    total: TensorView | None = None
    for number in range(found.terms):
        term = _Term(fusion, found, number).image(fold.tensor_inputs[0])
        total = term if total is None else pointwise(fusion, OPS[fold.attributes["kind"]], total, term)  # type: ignore[assignment]
    assert total is not None
    value = squeeze(fusion, total, [dim])
    others = [is_folded for d, is_folded in enumerate(folded) if d != dim]
    if any(others):
        value = reduce_like(fusion, fold, value, others, out.dtype())
    release_result(fusion, fold)
    fusion.register(LoadStoreOp([value], [out]))


class _Term:
    """What is computed from one tensor of each stack: tensors with one element along its axis."""

    def __init__(self, fusion: Fusion, found: Stacked, number: int) -> None:
        self.fusion, self.found, self.number = fusion, found, number
        self.made: dict[TensorView, TensorView] = {}

    def image(self, tensor: TensorView) -> TensorView:
        if tensor not in self.made:
            self.made[tensor] = self._computed(tensor)
        return self.made[tensor]

    def _computed(self, tensor: TensorView) -> TensorView:
        above, dim = tensor.definition(), self.found.dims[tensor]
        if isinstance(above, CatOp):
            return above.tensor_inputs[self.number]
        assert above is not None
        places = dict(_operands(above, dim))
        inputs = [self._operand(v, places.get(v)) if isinstance(v, TensorView) else v for v in above.inputs]
        return self._copy_of(above, inputs, tensor, dim)

    def _operand(self, tensor: TensorView, dim: int | None) -> TensorView:
        """Return the operand of a term. dim: its axis, None if it is the same for all terms."""
        if tensor in self.found.dims:
            return self.image(tensor)
        return tensor if dim is None else self._selected(tensor, dim)

    def _selected(self, tensor: TensorView, dim: int) -> TensorView:
        """Return the elements of a tensor at the place of this term, with one element along its axis."""
        if tensor in self.made:
            return self.made[tensor]
        fusion, positions, axes = self.fusion, list[Position](), []
        for d, axis in enumerate(logical_axes(tensor)):
            is_single = axis.is_broadcast() or d == dim
            axes.append(fusion.new_axis(1, IterType.broadcast) if is_single else fusion.copy_axis(axis))
            positions.append(Fixed(const(self.number)) if d == dim else Fixed(ZERO) if is_single else Along(d))
        term = self.made[tensor] = fusion.new_tensor(axes, tensor.dtype())
        fusion.register(LookupOp([tensor], [term], op="select", positions=tuple(positions), is_masked=False))
        return term

    def _copy_of(self, expr: Expr, inputs: list[Val], old: TensorView, dim: int) -> TensorView:
        fusion = self.fusion
        axes = [fusion.new_axis(1, IterType.broadcast) if d == dim else fusion.copy_axis(a) for d, a in enumerate(logical_axes(old))]
        out = fusion.new_tensor(axes, old.dtype())
        operands = [_single(fusion, v, dim) if isinstance(v, TensorView) and isinstance(expr, PointwiseOp) else v for v in inputs]
        fusion.register(type(expr)(operands, [out], **expr.attributes))
        return out


def _single(fusion: Fusion, tensor: TensorView, dim: int) -> TensorView:
    """Return a tensor with one element along an axis, which may be repeated."""
    if logical_axes(tensor)[dim].expanded_extent is None:
        return tensor
    return broadcast(fusion, squeeze(fusion, tensor, [dim], squeeze_expanded=True), [d == dim for d in range(tensor.ndim)])


__all__ = ["fold_stacks"]
