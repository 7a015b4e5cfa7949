"""Which elements a kernel needs: those that a mask of positions, as `where(i >= j, x, c)`, does not throw away.

Owns the reading of conditions as bounds on the positions of elements, and what of each tensor is needed. A bound is necessary: an element that
breaks it is not needed; one that keeps it may be. Read first: `Bound`, then `needed_elements`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..dtypes import DataType
from ..expr import ONE, ZERO, Sym, const, mul
from ..ir.block_ops import BlockFoldOp
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, IotaOp, LoadStoreOp, PointwiseOp, Scalar, SqueezeOp, TensorView, Val, no_reductions

Needed = frozenset["Bound"]
"""Bounds that all hold for needed elements; none: every element is needed."""

EVERYWHERE: Needed = frozenset()


@dataclass(frozen=True)
class Bound:
    """sum(step * index of the axis) + offset <= 0, over logical axes. steps: (position, step) of the nonzero steps, in order."""

    steps: tuple[tuple[int, int], ...]
    offset: Sym


@dataclass(frozen=True)
class _Linear:
    """An integer that is linear in the positions of an element."""

    steps: dict[int, int]
    offset: Sym

    def plus(self, other: "_Linear", times: int = 1) -> "_Linear":
        steps = {p: self.steps.get(p, 0) + times * other.steps.get(p, 0) for p in {*self.steps, *other.steps}}
        return _Linear({p: step for p, step in steps.items() if step}, self.offset + mul(const(times), other.offset))

    def at_most_zero(self) -> Bound:
        return Bound(tuple(sorted(self.steps.items())), self.offset)


def position_of(value: Val) -> int | None:
    """Return the logical axis along which an integer tensor has the values 0, 1, 2 and so on; None for others."""
    found = _Conditions().linear(value)
    (axis, step), *more = [*found.steps.items(), (0, 0)] if found is not None and found.steps else [(0, 0)]
    return axis if step == 1 and len(more) == 1 and found is not None and found.offset is ZERO else None


def _axes_count(tensor: TensorView) -> int:
    return len(no_reductions(tensor.get_logical_domain()))


class _Conditions:
    """Reads tensors of integers and truth values as functions of positions."""

    def __init__(self) -> None:
        self._linear: dict[TensorView, _Linear | None] = {}

    def linear(self, value: Val) -> _Linear | None:
        """Return an integer as a linear function of positions, or None."""
        if isinstance(value, Scalar):
            return _Linear({}, value.sym) if value.dtype().is_integer else None
        assert isinstance(value, TensorView)
        if value not in self._linear:
            self._linear[value] = None  # to stop recursion
            self._linear[value] = self._linear_of(value, value.definition())
        return self._linear[value]

    def _linear_of(self, tensor: TensorView, expr: Expr | None) -> _Linear | None:
        if expr is None or tensor.dtype() not in (DataType.Int, DataType.Int32, DataType.Index):  # other types may overflow
            return None
        if isinstance(expr, IotaOp):
            _, start, step = (v.sym for v in expr.inputs)  # type: ignore[attr-defined]
            if no_reductions(tensor.get_logical_domain())[0].is_broadcast():  # one element: its axis may repeat over that of another operand
                return _Linear({}, start)
            return _Linear({0: int(step.value)}, start) if step.is_const and step.value and _axes_count(tensor) == 1 else None
        if isinstance(expr, PointwiseOp):
            return self._arithmetic(expr)
        source = expr.inputs[0] if expr.inputs else None
        found = self.linear(source) if isinstance(source, TensorView) else None
        moved = None if found is None else _moved(expr, tensor)
        if moved is None:
            return None
        return _Linear({moved[p]: step for p, step in found.steps.items() if p in moved}, found.offset)  # type: ignore[union-attr]

    def _arithmetic(self, expr: PointwiseOp) -> _Linear | None:
        operands = [self.linear(v) for v in expr.inputs]
        if None in operands:
            return None
        first, *rest = operands
        if expr.op_name == "cast":
            return first
        if expr.op_name in ("add", "sub"):
            return first.plus(rest[0], 1 if expr.op_name == "add" else -1)  # type: ignore[union-attr, arg-type]
        if expr.op_name == "neg":
            return _Linear({}, ZERO).plus(first, -1)  # type: ignore[arg-type]
        if expr.op_name == "mul":
            for factor, other in ((rest[0], first), (first, rest[0])):
                if not factor.steps and factor.offset.is_const:  # type: ignore[union-attr]
                    return _Linear({}, ZERO).plus(other, int(factor.offset.value))  # type: ignore[union-attr, arg-type]
        return None

    def bounds(self, condition: Val, holds: bool = True) -> Needed:
        """Return bounds that hold wherever `condition` is true (or false, for `holds` False)."""
        expr = condition.definition()
        if not isinstance(condition, TensorView) or expr is None:
            return EVERYWHERE
        if isinstance(expr, PointwiseOp):
            return self._of_op(expr, holds)
        source = expr.inputs[0] if expr.inputs else None
        moved = _moved(expr, condition) if isinstance(source, TensorView) else None
        if moved is None:
            return EVERYWHERE
        found = self.bounds(source, holds)  # type: ignore[arg-type]
        return frozenset(Bound(tuple(sorted((moved[p], s) for p, s in b.steps)), b.offset) for b in found if all(p in moved for p, _ in b.steps))

    def exact(self, condition: Val, holds: bool = True) -> Needed | None:
        """Return bounds that hold exactly where `condition` is true (or false, for `holds` False); None where none are known."""
        expr = condition.definition()
        if not isinstance(condition, TensorView) or expr is None:
            return None
        if not isinstance(expr, PointwiseOp):
            source = expr.inputs[0] if expr.inputs else None
            moved = _moved(expr, condition) if isinstance(source, TensorView) else None
            found = None if moved is None else self.exact(source, holds)  # type: ignore[arg-type]
            if found is None or any(p not in moved for b in found for p, _ in b.steps):  # type: ignore[operator]
                return None
            return frozenset(Bound(tuple(sorted((moved[p], s) for p, s in b.steps)), b.offset) for b in found)  # type: ignore[index]
        name = _name_of_truths(expr)
        if name in ("logical_not", "bitwise_not"):
            return self.exact(expr.inputs[0], not holds)
        if name in ("logical_and", "bitwise_and", "logical_or", "bitwise_or"):
            first, second = (self.exact(v, holds) for v in expr.inputs)
            is_both = name.endswith("and") is holds and first is not None and second is not None
            return first | second if is_both else None  # type: ignore[operator]
        return self._of_op(expr, holds) or None if name in ("ge", "gt", "le", "lt", "eq") else None

    def _of_op(self, expr: PointwiseOp, holds: bool) -> Needed:
        name = _name_of_truths(expr)
        if name in ("logical_not", "bitwise_not"):
            return self.bounds(expr.inputs[0], not holds)
        if name == "cast":
            return self.bounds(expr.inputs[0], holds)
        if name in ("logical_and", "bitwise_and", "logical_or", "bitwise_or"):
            first, second = (self.bounds(v, holds) for v in expr.inputs)
            return first | second if name.endswith("and") is holds else first & second
        if name not in ("ge", "gt", "le", "lt", "eq"):
            return EVERYWHERE
        a, b = (self.linear(v) for v in expr.inputs)
        if a is None or b is None or not (a.steps or b.steps):
            return EVERYWHERE
        if name == "eq":
            return frozenset((a.plus(b, -1).at_most_zero(), b.plus(a, -1).at_most_zero())) if holds else EVERYWHERE
        name = name if holds else {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}[name]
        difference = a.plus(b, -1) if name in ("le", "lt") else b.plus(a, -1)
        return frozenset((difference.plus(_Linear({}, ONE) if name in ("lt", "gt") else _Linear({}, ZERO)).at_most_zero(),))


def _name_of_truths(expr: PointwiseOp) -> str:
    """Return the name of an op; "" for one of the bits of integers, which says nothing of whether these are 0."""
    is_of_bits = expr.op_name.startswith("bitwise") and expr.tensor_outputs[0].dtype() is not DataType.Bool
    return "" if is_of_bits else expr.op_name


def _moved(expr: Expr, out: TensorView) -> dict[int, int] | None:
    """Return the position in `out` of each input axis of an op that only moves axes, or None for other ops."""
    source = expr.inputs[0]
    assert isinstance(source, TensorView)
    if isinstance(expr, BroadcastOp):
        kept = [p for p, is_new in enumerate(expr.attributes["flags"]) if not is_new]
        return dict(enumerate(kept))
    if isinstance(expr, SqueezeOp):
        kept = [p for p, is_dropped in enumerate(expr.attributes["flags"]) if not is_dropped]
        return {old: new for new, old in enumerate(kept)}
    if isinstance(expr, (ExpandOp, LoadStoreOp)) and not out.has_root() and _axes_count(source) == _axes_count(out):
        axes = no_reductions(source.get_logical_domain())
        return {p: p for p, axis in enumerate(axes) if axis.sym is not ONE or not isinstance(expr, ExpandOp)}  # an expanded axis has only position 0
    return None


def mask_bounds(expr: Expr) -> Needed:
    """Return bounds that hold wherever a `where` takes its second operand; EVERYWHERE for other ops."""
    is_where = isinstance(expr, PointwiseOp) and expr.op_name == "where"
    return _Conditions().bounds(expr.inputs[0]) if is_where else EVERYWHERE


def taken_bounds(expr: Expr) -> Needed | None:
    """Return bounds that hold exactly where a `where` takes its second operand; None where none are known, and for other ops."""
    is_where = isinstance(expr, PointwiseOp) and expr.op_name == "where"
    return _Conditions().exact(expr.inputs[0]) if is_where else None


def needed_elements(fusion: Fusion) -> dict[TensorView, Needed]:
    """Return for each tensor which elements are needed for an output; tensors of which every element may be needed are omitted."""
    conditions = _Conditions()
    exprs = fusion.tensor_exprs()
    if not any(isinstance(e, PointwiseOp) and e.op_name == "where" for e in exprs):
        return {}
    needed: dict[TensorView, Needed] = {v: EVERYWHERE for v in fusion.tensor_outputs()}
    for expr in reversed(exprs):
        for number, operand in enumerate(expr.inputs):
            if isinstance(operand, TensorView):
                found = _of_operand(expr, number, operand, needed, conditions)
                needed[operand] = needed[operand] & found if operand in needed else found
    return {tensor: bounds for tensor, bounds in needed.items() if bounds}


def _of_operand(expr: Expr, number: int, operand: TensorView, needed: dict[TensorView, Needed], conditions: _Conditions) -> Needed:
    out = expr.outputs[0]
    if not isinstance(out, TensorView):
        return EVERYWHERE
    bounds = needed.get(out, EVERYWHERE)
    if isinstance(expr, BlockFoldOp):  # reads the neighbours of each element, too
        return EVERYWHERE
    if isinstance(expr, PointwiseOp):
        if expr.op_name == "where" and number:
            bounds = bounds | conditions.bounds(expr.inputs[0], holds=number == 1)
        return _without_broadcasts(bounds, operand)
    moved = _moved(expr, out) if isinstance(expr, LoadStoreOp) else None
    return EVERYWHERE if moved is None else _without_broadcasts(bounds, operand)


def _without_broadcasts(bounds: Iterable[Bound], operand: TensorView) -> Needed:
    """Drop bounds that depend on an axis along which the operand is broadcast."""
    axes = no_reductions(operand.get_logical_domain())
    return frozenset(b for b in bounds if all(p < len(axes) and not axes[p].is_broadcast() for p, _ in b.steps))


__all__ = ["EVERYWHERE", "Bound", "Needed", "mask_bounds", "needed_elements", "position_of", "taken_bounds"]
