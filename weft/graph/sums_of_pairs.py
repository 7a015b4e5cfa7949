"""Sums over either of two axes of a function of pairs: where f(i, j) is f(j, i) or -f(j, i), its sums over rows are those over columns, or their negatives.

So the gradient of x in x[:, None] - x[None] is written, such as the forces between particles: each is in a row and in a column. Two kernels would compute all
pairs, or one would store them. Read first: `share_sums_of_pairs`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Optional

from ..analysis.plain_copies import is_copy
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, LoadStoreOp, PointwiseOp, ReductionOp, Scalar, SqueezeOp, TensorView, Val
from ..ops.build import logical_axes
from ..ops.registry import Parity, lookup
from .exact_quotients import QUOTIENTS
from .factored_sums import WIDE
from .made_reductions import release_result

FOLDED, KEPT = "folded", "kept"
"""Labels of the axis that a reduction folds, and of the axis with as many elements beside it, which it keeps."""
Label = Optional[Hashable]
_Use = tuple[TensorView, tuple[Label, ...]]
Form = tuple[int, int]
"""A sign, and a number that equal values have in common. The sign is 0 if it does not matter: the value is 0, or no number."""


@dataclass(frozen=True)
class Sums:
    """A reduction of the axis `folded`, among others, whose neighbour `kept` has as many elements."""

    expr: ReductionOp
    folded: int
    kept: int

    @property
    def alike(self) -> Hashable:
        """What reductions over either axis of one pair have in common."""
        out = self.expr.tensor_outputs[0]
        others = tuple(axis.is_reduction() for d, axis in enumerate(out.get_logical_domain()) if d not in (self.folded, self.kept))
        extents = tuple(axis.logical_extent for axis in logical_axes(self.expr.tensor_inputs[0]))
        return self.expr.attributes["kind"], out.dtype(), min(self.folded, self.kept), others, extents

    @property
    def labels(self) -> tuple[Label, ...]:
        names = {self.folded: FOLDED, self.kept: KEPT}
        return tuple(names.get(d, d) for d in range(len(self.expr.tensor_outputs[0].get_logical_domain())))


def share_sums_of_pairs(fusion: Fusion) -> None:
    """Let a reduction over one of two axes be the result of one over the other, or its negative, in place, where what they reduce is the same with the two axes
    exchanged.

    Before: no axis is open. After: results keep their names.
    """
    groups: dict[Hashable, list[Sums]] = {}
    for expr in fusion.tensor_exprs():
        for sums in _sums(expr):
            groups.setdefault(sums.alike, []).append(sums)
    forms = _Forms()
    for group in groups.values():
        if len({sums.folded for sums in group}) > 1:
            _share(fusion, group, forms)


def _sums(expr: Expr) -> Iterator[Sums]:
    if not isinstance(expr, ReductionOp) or len(expr.inputs) != 1 or len(expr.outputs) != 1 or expr.tensor_outputs[0].has_root():
        return
    source, axes = logical_axes(expr.tensor_inputs[0]), expr.tensor_outputs[0].get_logical_domain()
    for one in range(len(axes) - 1):
        pair = (one, one + 1)
        is_pair = source[one].logical_extent is source[one + 1].logical_extent and not any(source[d].is_broadcast() for d in pair)
        if is_pair and axes[one].is_reduction() is not axes[one + 1].is_reduction():
            yield Sums(expr, *(pair if axes[one].is_reduction() else pair[::-1]))


def _share(fusion: Fusion, group: list[Sums], forms: _Forms) -> None:
    known: dict[int, tuple[Sums, int]] = {}
    for sums in group:
        source, out = sums.expr.tensor_inputs[0], sums.expr.tensor_outputs[0]
        if out.definition() is not sums.expr:  # it is shared already
            continue
        sign, number = forms.of(source, sums.labels)
        first, its_sign = known.setdefault(number, (sums, sign))
        is_signed = sign != its_sign
        if first.folded == sums.folded or is_signed and (sums.expr.attributes["kind"] != "sum" or out.dtype() not in WIDE):
            continue
        total = first.expr.tensor_outputs[0]
        release_result(fusion, sums.expr)
        fusion.register(PointwiseOp([total], [out], op="neg", compute=out.dtype()) if is_signed else LoadStoreOp([total], [out]))


class _Forms:
    """Normal forms of values: equal ones are computed by the same ops, up to the order of operands, copies, views and signs."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.known: dict[_Use, Form] = {}

    def of(self, tensor: TensorView, labels: tuple[Label, ...]) -> Form:
        """Return the form of a tensor. labels: of its axes; tensors that vary along other labels are different."""
        wanted = _use(tensor, labels)
        pending = [wanted]
        while pending:
            use = pending[-1]
            operands = () if use in self.known else tuple(_operands(use))
            missing = [operand for operand in operands if operand not in self.known]
            if missing:
                pending += missing
                continue
            pending.pop()
            if use not in self.known:
                self.known[use] = self._form(use, [self.known[operand] for operand in operands])
        return self.known[wanted]

    def _number(self, *key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _form(self, use: _Use, operands: list[Form]) -> Form:
        tensor, labels = use
        expr = tensor.definition()
        if isinstance(expr, PointwiseOp):
            of_tensors = iter(operands)
            forms = [next(of_tensors) if isinstance(v, TensorView) else (_sign_of_number(v), self._scalar(v)) for v in expr.inputs]
            return self._pointwise(expr, forms)
        if isinstance(expr, ReductionOp) and operands:
            (sign, number), kind = operands[0], expr.attributes["kind"]
            folded = tuple(axis.sym for axis in tensor.get_logical_domain() if axis.is_reduction())
            return (sign, self._number(kind, folded, number)) if kind == "sum" else (1, self._number(kind, folded, sign, number))
        if operands:
            return operands[0]  # copies and views
        if isinstance(expr, FullOp):
            return _sign_of_number(expr.inputs[0]), self._number("full", tensor.dtype(), self._scalar(expr.inputs[0]))
        if isinstance(expr, IotaOp):
            return 1, self._number("iota", tensor.dtype(), tuple(map(self._scalar, expr.inputs)), labels)
        return 1, self._number("tensor", tensor.name, labels)

    def _scalar(self, value: Val) -> int:
        return self._number("scalar", value.sym if isinstance(value, Scalar) else value)

    def _pointwise(self, expr: PointwiseOp, operands: list[Form]) -> Form:
        name, op = expr.op_name, lookup(expr.op_name)
        signs, numbers = [sign for sign, _ in operands], [number for _, number in operands]
        key = name, expr.attributes["compute"], expr.attributes.get("dtype")
        if name == "neg" and key[1].is_float and signs[0]:
            return -signs[0], numbers[0]
        if name in ("add", "sub") and key[1].is_float:
            terms = sorted([operands[0], (signs[1] if name == "add" else -signs[1], numbers[1])], key=lambda form: form[1])
            sign = terms[0][0] or terms[1][0]
            return sign, self._number("add", *key[1:], *((sign * its, number) for its, number in terms))
        if name == "mul" or name in QUOTIENTS and signs[1]:
            return signs[0] * signs[1], self._number(*key, *(sorted(numbers) if op.commutes else numbers))
        if name == "where":
            sign = signs[1] or signs[2]
            return sign, self._number(*key, *numbers, sign * signs[1], sign * signs[2])
        parity = _PARITIES[name](expr) if name in _PARITIES else op.parity
        if parity is not Parity.none and signs[0]:
            return signs[0] if parity is Parity.odd else 1, self._number(*key, *numbers)
        return 1, self._number(*key, *(sorted(operands) if op.commutes else operands))


def _use(tensor: TensorView, labels: tuple[Label, ...]) -> _Use:
    """Leave out the labels of axes along which a tensor does not vary."""
    return tensor, tuple(None if axis.is_broadcast() else label for axis, label in zip(logical_axes(tensor), labels, strict=True))


def _operands(use: _Use) -> Iterator[_Use]:
    """Yield the tensors that a tensor is computed from, with the labels of their axes; none for what is read, or computed by other ops than those here."""
    tensor, labels = use
    expr, rest = tensor.definition(), iter(labels)
    if isinstance(expr, (PointwiseOp, ExpandOp)):
        yield from (_use(t, labels) for t in expr.tensor_inputs)
    elif isinstance(expr, BroadcastOp):
        yield _use(expr.tensor_inputs[0], tuple(label for label, new in zip(labels, expr.attributes["flags"]) if not new))
    elif isinstance(expr, SqueezeOp):
        yield _use(expr.tensor_inputs[0], tuple(None if dropped else next(rest) for dropped in expr.attributes["flags"]))
    elif isinstance(expr, ReductionOp) and len(expr.inputs) == len(expr.outputs) == 1 and not tensor.has_root():
        around = frozenset(labels)  # a label of its own, whichever of two axes is folded outside
        yield _use(expr.tensor_inputs[0], tuple((d, around) if a.is_reduction() else next(rest) for d, a in enumerate(tensor.get_logical_domain())))
    elif is_copy(expr):
        of_axis = dict(zip(logical_axes(tensor), labels))
        yield _use(expr.tensor_inputs[0], tuple(of_axis.get(axis) for axis in tensor.get_maybe_root_domain()))  # type: ignore[union-attr]


def _sign_of_number(value: Val) -> int:
    return 0 if isinstance(value, Scalar) and value.sym.is_const and value.sym.value == 0 else 1


def _parity_of_power(expr: PointwiseOp) -> Parity:
    exponent = expr.inputs[1].sym if isinstance(expr.inputs[1], Scalar) else None
    value = exponent.value if exponent is not None and exponent.is_const else None
    if not isinstance(value, (int, float)) or not float(value).is_integer():
        return Parity.none
    return Parity.odd if int(value) % 2 else Parity.even


def _parity_of_cast(expr: PointwiseOp) -> Parity:
    dtype = expr.attributes["dtype"]
    return Parity.odd if dtype.is_float else Parity.even if dtype.is_bool else Parity.none


_PARITIES = {"pow": _parity_of_power, "cast": _parity_of_cast}


__all__ = ["share_sums_of_pairs"]
