"""Values that are used along two axes of a tensor, as in v[:, None] - v, or the same labels for the rows and the columns of a matrix of similarities.

A kernel runs one loop for an axis and all that is computed from it, so two axes of a tensor to which one row is added would have the same loop. Read and
computed once for each, the row has a loop of its own each time. Read first: `separate_rows`.
"""

from __future__ import annotations

from ..analysis.loop_axes import loop_axes
from ..analysis.plain_copies import is_plain_copy
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp
from ..ir.values import BroadcastOp, ExpandOp, FullOp, IotaOp, PointwiseOp, SqueezeOp, TensorView
from ..ops.build import compute_again, logical_axes

STEPS = (IotaOp, FullOp, PointwiseOp, BroadcastOp, SqueezeOp, ExpandOp)
MOST_COPIES = 2000
"""More are not made: the definition is cut into several kernels instead."""


def separate_rows(fusion: Fusion) -> None:
    """Compute what comes from rows once for each place where it is used, in place, if two axes of a tensor would have one loop, and then have not.

    A row is an input with one axis, or positions. Before: no axis is open. After: results keep their names; what is used in one place stays as it was; other
    uses of an input read it as a lookup at its own positions, whose axes are no input's.
    """
    if loop_axes(fusion).conflict is None:
        return
    trial, _ = fusion.clone()
    if _Copies(trial).make():
        _Copies(fusion).make()


def axes_of_its_own(tensor: TensorView) -> int:
    """Return the number of axes along which a tensor has several elements."""
    return sum(not axis.is_broadcast() or axis.expanded_extent is not None for axis in logical_axes(tensor))


def _from_rows(fusion: Fusion) -> set[TensorView]:
    """Return the inputs with one axis, and what follows from these, from positions and from single values; outputs are not copied."""
    outputs = set(fusion.tensor_outputs())
    rows = {t for t in fusion.inputs() if isinstance(t, TensorView) and axes_of_its_own(t) == 1 and not any(a.expanded_extent for a in logical_axes(t))}
    for expr in fusion.tensor_exprs():
        is_step = (isinstance(expr, STEPS) or is_plain_copy(expr)) and expr.tensor_outputs[0] not in outputs
        if is_step and all(t in rows or not axes_of_its_own(t) for t in expr.tensor_inputs):
            rows.update(expr.tensor_outputs)
    return rows


class _Copies:
    """Copies of what follows from rows. made: (original, copy), operands first."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion, self.rows = fusion, _from_rows(fusion)
        self.made: list[tuple[TensorView, TensorView]] = []

    def make(self) -> bool:
        """Copy for each place; return whether no two axes of a tensor have one loop any more."""
        for expr in self.fusion.tensor_exprs():
            if expr.tensor_outputs[0] not in self.rows and axes_of_its_own(expr.tensor_outputs[0]) > 1:
                for tensor in dict.fromkeys(t for t in expr.tensor_inputs if t in self.rows and axes_of_its_own(t)):
                    if len(self.made) > MOST_COPIES:
                        return False
                    self.fusion.replace_input(expr, tensor, self._copied(tensor, {}))
        if loop_axes(self.fusion).conflict is not None:
            return False
        self._merge()
        return loop_axes(self.fusion).conflict is None

    def _copied(self, tensor: TensorView, known: dict[TensorView, TensorView]) -> TensorView:
        """Return a copy, with axes of its own. known: copies with the same axes. An operand with fewer axes than the result has a copy for itself."""
        if tensor not in self.rows:
            return tensor
        if tensor not in known:
            expr, count = tensor.definition(), axes_of_its_own(tensor)
            if expr is None:
                copy = self._read_again(tensor)
            else:
                near = {v: known if axes_of_its_own(v) == count else {} for v in expr.tensor_inputs}
                copy = compute_again(self.fusion, expr, [self._copied(v, near[v]) if isinstance(v, TensorView) else v for v in expr.inputs])
            self.made.append((tensor, copy))
            known[tensor] = copy
        return known[tensor]

    def _read_again(self, tensor: TensorView) -> TensorView:
        axes = logical_axes(tensor)
        copy = self.fusion.new_tensor([self.fusion.copy_axis(axis) for axis in axes], tensor.dtype())
        positions = tuple(Along(d) for d in range(len(axes)))
        self.fusion.register(LookupOp([tensor], [copy], op="slice", positions=positions, is_masked=False, reading=len(self.made)))
        return copy

    def _merge(self) -> None:
        """Keep one copy for each place, and the original where it has one place, as do its operands."""
        axes = loop_axes(self.fusion)
        places = {copy: tuple(axes.of(a) for a in logical_axes(copy)) for _, copy in self.made}
        of: dict[TensorView, set[tuple[int | None, ...]]] = {}
        for tensor, copy in self.made:
            of.setdefault(tensor, set()).add(places[copy])
        kept: dict[tuple[TensorView, tuple[int | None, ...]], TensorView] = {}
        stays: set[TensorView] = set()
        for tensor, copy in self.made:
            expr = tensor.definition()
            if len(of[tensor]) == 1 and (expr is None or all(t in stays for t in expr.tensor_inputs if t in of)):
                stays.add(tensor)
            other = tensor if tensor in stays else kept.setdefault((tensor, places[copy]), copy)
            if other is not copy:
                self.fusion.replace_inputs(copy.uses(), copy, other)


__all__ = ["separate_rows"]
