"""The values of a thread that has neighbouring results: those that are equal for several of them are loaded and computed once, as the CUDA compiler does.

Results that look up windows of an image share pixels, weights, and sums of pixels. Values are numbered: two are the same if one op makes them of the same
values. Positions are index expressions, of which the compiler sees that they are equal (`lower/counted_positions.py`); those that differ by a constant share
their arithmetic, and an access adds the constant. Read first: `ThreadValues`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import DataType
from ..expr import ZERO, Sym, add, conjunction, const, evaluate_int, floordiv, from_terms, less, maximum, minimum, mod, mul, sub, terms, var, variables
from ..ir.graph_ops import Along, At, Fixed, LookupOp
from ..ir.values import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, LoadStoreOp, PointwiseOp, ReductionOp, Scalar, SqueezeOp, TensorView, Val, no_reductions
from .loop_axes import LoopAxes
from .op_cost import OpCost, cost_of
from .ranges import Range, kept_operand, range_of

COPIES = (BroadcastOp, ExpandOp, SqueezeOp, LoadStoreOp)
ARITHMETIC: dict[str, Callable[..., Sym]] = {
    "add": add, "sub": sub, "mul": mul, "maximum": maximum, "minimum": minimum, "clamp": lambda x, low, high: minimum(maximum(x, low), high),
    "lt": less, "le": lambda a, b: less(a, add(b, 1)), "gt": lambda a, b: less(b, a), "ge": lambda a, b: less(b, add(a, 1)),
    **dict.fromkeys(("bitwise_and", "logical_and"), lambda a, b: conjunction((a, b))),
}  # fmt: skip
DIVISIONS: dict[str, Callable[[Sym, Sym], Sym]] = {"div": floordiv, "fmod": mod, "remainder": mod}
"""By the names of ops: the index expression of the result, of divisions if no operand is negative."""
INTEGERS = (DataType.Bool, DataType.Int32, DataType.Int)


def counted_only(value: Val, known: dict[Val, bool] | None = None) -> bool:
    """True if a tensor of integers or conditions follows from counted positions and scalars, without memory."""
    known = {} if known is None else known
    if isinstance(value, TensorView) and value not in known:
        expr = value.definition()
        is_pure = isinstance(expr, (*COPIES, FullOp, IotaOp, PointwiseOp)) and value.dtype() in INTEGERS
        known[value] = is_pure and all(counted_only(v, known) for v in expr.inputs)  # type: ignore[union-attr]
    return known.get(value, isinstance(value, Scalar))


def in_thread(order: Sequence[int], extents: Sequence[int], elems: int, element: int, phased: int = 0) -> dict[int, Sym]:
    """Return the index of each loop at an element of a thread's vector. order, extents: of the loops, outermost first. Loops whose ends vectors cross have an
    unknown index for each element. phased: how many innermost loops are merged to one in which vectors begin anywhere, and whose end they do not cross."""
    indices, left, at = dict[int, Sym](), elems, element
    if phased == 1:
        indices[order[-1]] = add(var(f"i{order[-1]}", lower=0), element)
        order, extents, left = order[:-1], extents[:-1], 1
    elif phased:
        left = 0
    for n, extent in zip(reversed(order), reversed(extents)):
        if left and extent % left == 0:
            indices[n] = add(mul(var(f"i{n}", extent=extent // left), left), at) if extent > left else const(at)
            left, at = 1, 0
        elif left and left % extent == 0:
            indices[n], left, at = const(at % extent), left // extent, at // extent
        else:
            indices[n], left, phased = var(f"i{n}.{element}", extent=extent), int(phased == 1), phased - 1
    return indices


@dataclass(slots=True)
class _Made:
    """How a tensor is made, the same for all elements and all threads. loops: those that its elements depend on. kept: the operand that the result always is.
    only: the only value that a position has. rule: the index expression of a position; is_divided: by a division. same: what equal ops have in common."""

    expr: Expr | None
    loops: tuple[int, ...]
    kept: int | None = None
    is_integer: bool = False
    only: Sym | None = None
    rule: Callable[..., Sym] | None = None
    is_divided: bool = False
    same: tuple[Any, ...] = ()


class ThreadValues:
    """Numbers the values of a thread with `elems` neighbouring results.

    operations[d]: cost of the ops, as in `OpCost.instructions`, on values that depend on the first d loops at most; positions that differ by a constant share
    one. mufu: special functions of all values. divisions[d]: of positions. crosses: vectors cross the ends of loops, so that the index of each element is
    divided. loads: (source, index expression) of what is looked up -> a lookup and an element that read it.
    """

    def __init__(self, axes: LoopAxes, order: Sequence[int], env: Mapping[Sym, int], elems: int, phased: int = 0) -> None:
        self.axes, self.env, self.elems = axes, env, elems
        extents = axes.extents_elems(env)
        self.indices = [in_thread(order, [extents[n] for n in order], elems, element, phased) for element in range(elems)]
        self.crosses = any(len({found[n] for found in self.indices}) > 1 and all(found[n].is_var for found in self.indices) for n in order)
        self.place = {n: at for at, n in enumerate(order)}
        self.operations, self.divisions = [0] * (len(order) + 1), [0] * (len(order) + 1)
        self.loads: dict[tuple[int, Sym], tuple[LookupOp, int]] = {}
        self._known: dict[Val, list[Sym | int | None]] = {}
        self._first: dict[tuple[int, ...], list[int]] = {}  # by loops: for each element the first one with the same indices
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._bases: set[Sym] = {ZERO}
        self.mufu = 0
        self._made: dict[Val, _Made] = axes.found.setdefault("made", {})
        self._ranges: dict[Val, Range | None] = axes.found.setdefault("ranges", {})
        self._costs: dict[Expr, OpCost] = axes.found.setdefault("costs", {})

    def value(self, value: Val, element: int) -> Sym | int:
        """Return what a value is at an element: an index expression for positions, else a number."""
        if isinstance(value, Scalar):
            return value.sym
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = [None] * self.elems
        found = known[element]
        if found is None:
            assert isinstance(value, TensorView)
            made = self._made.get(value)
            if made is None:
                made = self._made[value] = self._how(value)
            first = self._firsts(made.loops)[element]
            found = known[element] = self._of(value, made, element) if first == element else self.value(value, first)
        return found

    def _firsts(self, loops: tuple[int, ...]) -> list[int]:
        """Return for each element the first one at which these loops have the same indices."""
        found = self._first.get(loops)
        if found is None:
            seen: dict[tuple[Sym | None, ...], int] = {}
            found = self._first[loops] = [seen.setdefault(tuple([at.get(n) for n in loops]), element) for element, at in enumerate(self.indices)]
        return found

    def _how(self, value: TensorView) -> _Made:
        """Return how a tensor is made."""
        expr = value.definition()
        made = _Made(expr, tuple(sorted(self.axes.stored(value))))
        if expr is None or isinstance(expr, (*COPIES, FullOp, IotaOp, ReductionOp)):
            return made
        made.kept = kept_operand(expr, self._ranges)
        made.same = expr.op_name, value.dtype(), expr.outputs.index(value)
        made.is_integer = value.dtype() in INTEGERS
        if made.is_integer and isinstance(expr, PointwiseOp):
            found = range_of(value, self._ranges)
            made.only = const(found[0]) if found is not None and found[0] == found[1] else None
            made.rule, made.is_divided = self._rule(expr), expr.op_name in DIVISIONS
        return made

    def _rule(self, expr: PointwiseOp) -> Callable[..., Sym] | None:
        """Return the rule by which an op of positions is an index expression; None if there is none."""
        if expr.op_name not in DIVISIONS:
            return ARITHMETIC.get(expr.op_name)
        value, divisor = (range_of(v, self._ranges) for v in expr.inputs)
        return DIVISIONS[expr.op_name] if value is not None and divisor is not None and value[0] >= 0 and divisor[0] > 0 else None

    def _of(self, value: TensorView, made: _Made, element: int) -> Sym | int:
        expr = made.expr
        if expr is None:
            return self._number(value.name, *[self.indices[element].get(n) for n in made.loops])
        if isinstance(expr, (*COPIES, FullOp)):
            return self.value(expr.inputs[0], element)
        if isinstance(expr, IotaOp):
            return self._counted(value, expr, element)
        if isinstance(expr, ReductionOp):  # of the loops that a thread, or several, have whole
            return self._number("reduced", value.name)
        if isinstance(expr, LookupOp) and (address := self.address(expr, element)) is not None:
            return self._loaded(expr, address, element)
        kept = self._kept(made, element)
        if kept is not None:
            return self.value(expr.inputs[kept], element)
        operands = [self.value(v, element) for v in expr.inputs if isinstance(v, (TensorView, Scalar))]
        position = self._position(made, operands) if made.is_integer and isinstance(expr, PointwiseOp) else None
        if position is not None:
            return position
        count = len(self._numbers)
        number = self._number(*made.same, *operands)
        if number == count:
            cost = self._cost(expr)
            self.operations[self._depth(made)] += cost.instructions
            self.mufu += cost.mufu
        return var(f"v{number}", lower=-(1 << 62)) if made.is_integer else number

    def _kept(self, made: _Made, element: int) -> int | None:
        """Return the number of the operand that an op's result is at an element, because a condition is known there."""
        expr = made.expr
        if isinstance(expr, PointwiseOp) and expr.op_name == "where":
            condition = self.value(expr.inputs[0], element)
            if isinstance(condition, Sym) and condition.is_const:
                return 1 if condition.value else 2
        return made.kept

    def _number(self, *what: Any) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _counted(self, value: TensorView, expr: IotaOp, element: int) -> Sym:
        start, step = (v.sym for v in expr.inputs[1:3])  # type: ignore[attr-defined]
        place: Sym = ZERO
        for axis in no_reductions(value.get_logical_domain()):
            n = self.axes.of(axis)
            if not axis.is_broadcast() and n is not None:
                place = add(mul(place, self._size(axis.logical_extent)), self.indices[element].get(n, ZERO))
        return add(mul(place, step), start)

    def _position(self, made: _Made, operands: Sequence[Sym | int]) -> Sym | None:
        """Return the index expression of an op's result, and count its arithmetic; None if there is none."""
        if made.only is not None:
            return made.only
        if not all(isinstance(v, Sym) for v in operands):
            return None
        if made.expr.op_name == "cast":  # type: ignore[union-attr]
            return operands[0]  # type: ignore[return-value]
        if made.rule is None:
            return None
        result = made.rule(*operands)
        base = without_constant(result)
        if base not in self._bases:
            self._bases.add(base)
            is_divided = made.is_divided and any(factor.op in ("floordiv", "mod") for key in terms(base) for factor in key)
            (self.divisions if is_divided else self.operations)[self._depth(made)] += 1
        return result

    def address(self, lookup: LookupOp, element: int) -> Sym | None:
        """Return the place in memory of what is looked up; None if an index tensor in memory gives it."""
        strides, place = lookup.source.strides(), ZERO
        axes = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
        for axis, position in zip(no_reductions(lookup.source.get_logical_domain()), lookup.positions):
            if axis.is_broadcast() or axis not in strides:
                continue
            if isinstance(position, Along):
                n = self.axes.of(axes[position.axis])
                index = add(self.indices[element].get(n, ZERO) if n is not None else ZERO, position.offset)
            elif isinstance(position, At) and isinstance(found := self.value(lookup.inputs[position.operand], element), Sym):
                index = found
            elif isinstance(position, Fixed):
                index = position.position
            else:
                return None
            place = add(place, mul(index, self._size(strides[axis])))
        return place

    def _loaded(self, lookup: LookupOp, address: Sym, element: int) -> int:
        source = lookup.source.name
        self.loads.setdefault((source, address), (lookup, element))
        return self._number("lookup", source, address, lookup.is_masked)

    def _size(self, size: Sym) -> Sym:
        is_known = not size.is_const and all(v in self.env for v in variables(size))
        return const(evaluate_int(size, self.env)) if is_known else size

    def _depth(self, made: _Made) -> int:
        """Return how many loops are around the innermost one that a value depends on, that one included."""
        return max((self.place[n] + 1 for n in made.loops if n in self.place), default=0)

    def _cost(self, expr: Expr) -> OpCost:
        if expr not in self._costs:
            self._costs[expr] = cost_of([expr], ())
        return self._costs[expr]


def without_constant(value: Sym) -> Sym:
    """Return a sum without its constant."""
    return from_terms({key: c for key, c in terms(value).items() if key})


__all__ = ["ARITHMETIC", "COPIES", "DIVISIONS", "INTEGERS", "ThreadValues", "counted_only", "in_thread", "without_constant"]
