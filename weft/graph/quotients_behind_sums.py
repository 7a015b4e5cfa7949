"""Sums of quotients by what does not vary along them: sum(x / c) becomes sum(x) / c, and sum(y * (x / c)) becomes sum(y * x) / c.

A quotient takes as many instructions as ten products. And a mean weighted by a softmax, sum(exp(x) / sum(exp(x)) * v), then adds up both sums in one pass over
a row. Read first: `divide_behind_sums`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.axes import TIE
from ..analysis.plain_copies import is_plain_copy, only_reader
from ..ir.fusion import Fusion
from ..ir.values import Expr, PointwiseOp, ReductionOp, TensorView, Val
from ..ops.build import logical_axes
from .exact_quotients import QUOTIENTS
from .factored_sums import WIDE, without_axes
from .made_reductions import reduce_like, release_result

FEWEST_TERMS = 8
"""Terms from which on their quotients are worth more than one of the result. Counted: the gradient of normals of three numbers was 3 us longer with it."""
MOST_BETWEEN = 8
"""Products, signs and copies between a quotient and the sum of it that are looked through."""


def divide_behind_sums(fusion: Fusion) -> None:
    """Divide sums instead of their terms, in place, where nothing else needs the quotients.

    Before: no axis is open. After: results keep their names; each sum is rounded once more, and its terms once less. A sum beyond the largest number of its
    type is infinite, also where that of the quotients is not.
    """
    for expr in fusion.tensor_exprs():
        if isinstance(expr, ReductionOp) and _is_plain_sum(expr) and not _are_few(expr):
            folded = [d for d, axis in enumerate(expr.tensor_outputs[0].get_logical_domain()) if axis.is_reduction()]
            total: Expr = expr
            while (found := _quotient(total.tensor_inputs[0], total, folded, MOST_BETWEEN)) is not None:
                total = _exchange(fusion, total, *found, folded)


def _are_few(expr: ReductionOp) -> bool:
    """True for a sum of few terms, which threads share: each of them would divide the result."""
    sizes = [axis.sym for axis in expr.tensor_outputs[0].get_logical_domain() if axis.is_reduction()]
    return all(size.is_const for size in sizes) and math.prod([int(size.value) for size in sizes]) < FEWEST_TERMS  # type: ignore[arg-type, misc]


def _is_plain_sum(expr: ReductionOp) -> bool:
    out = expr.tensor_outputs[0]
    return expr.attributes["kind"] == "sum" and len(expr.inputs) == 1 and out.dtype() in WIDE and not out.has_root() and TIE not in expr.attributes


def _quotient(value: TensorView, reader: Expr, folded: Sequence[int], most: int) -> tuple[PointwiseOp, Expr] | None:
    """Return a quotient that is a factor of `value`, by what does not vary along the folded axes, and the expression that reads it."""
    above = value.definition()
    is_once = reader.inputs.count(value) == 1 and only_reader(value, reader)
    if above is None or most == 0 or not is_once or not (is_plain_copy(above) or _is_of_floats(above)):
        return None
    if isinstance(above, PointwiseOp) and above.op_name in QUOTIENTS:
        numerator, divisor = above.inputs
        is_even = not isinstance(divisor, TensorView) or all(logical_axes(divisor)[d].is_broadcast() for d in folded)
        return (above, reader) if is_even and _has_all_axes(numerator, value) else _of_operand(above, numerator, folded, most)
    if is_plain_copy(above) or isinstance(above, PointwiseOp) and above.op_name in ("mul", "neg"):
        found = (_of_operand(above, operand, folded, most) for operand in above.inputs)
        return next((one for one in found if one is not None), None)
    return None


def _of_operand(expr: Expr, operand: Val, folded: Sequence[int], most: int) -> tuple[PointwiseOp, Expr] | None:
    return _quotient(operand, expr, folded, most - 1) if isinstance(operand, TensorView) else None


def _is_of_floats(expr: Expr) -> bool:
    return isinstance(expr, PointwiseOp) and expr.attributes["compute"] in WIDE and expr.attributes["compute"] is expr.tensor_outputs[0].dtype()


def _has_all_axes(numerator: Val, quotient: TensorView) -> bool:
    """True if a numerator has the axes and the type of the quotient, and so can stand in its place."""
    if not isinstance(numerator, TensorView) or numerator.dtype() is not quotient.dtype():
        return False
    return all(a.is_broadcast() is b.is_broadcast() and a.expanded_extent is b.expanded_extent for a, b in zip(logical_axes(numerator), logical_axes(quotient)))


def _exchange(fusion: Fusion, expr: Expr, quotient: PointwiseOp, reader: Expr, folded: Sequence[int]) -> Expr:
    """Let the reader of a quotient read the numerator, and divide the result of the sum; return the sum."""
    numerator, divisor = quotient.inputs
    fusion.replace_input(reader, quotient.tensor_outputs[0], numerator)
    out = expr.tensor_outputs[0]
    is_folded = [axis.is_reduction() for axis in out.get_logical_domain()]
    assert isinstance(expr, ReductionOp)
    total = reduce_like(fusion, expr, expr.tensor_inputs[0], is_folded, out.dtype())
    release_result(fusion, expr)
    fusion.remove(quotient)
    result = [total, without_axes(fusion, divisor, folded)]
    fusion.register(PointwiseOp(result, [out], op=quotient.op_name, compute=out.dtype()))
    made = total.definition()
    assert made is not None
    return made


__all__ = ["divide_behind_sums"]
