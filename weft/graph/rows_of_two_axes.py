"""Values that are used along two axes of a tensor: v[:, None] - v, the same labels for the rows and the columns of a matrix of similarities, or a causal mask
arange(n)[:, None] < arange(n), whose positions a framework that removes equal nodes counts once.

A kernel runs one loop for an axis and all that is computed from it, so two axes of a tensor to which one row is added would have the same loop. Read and
computed once for each, the row has a loop of its own each time. Read first: `separate_rows`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Optional

from ..analysis.loop_axes import LoopAxes, loop_axes
from ..analysis.plain_copies import is_plain_copy
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScatterStoreOp
from ..ir.values import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, PointwiseOp, SqueezeOp, TensorView, Val
from ..ops.build import compute_again, logical_axes
from ..ops.lookups import leading_part

STEPS = (IotaOp, FullOp, PointwiseOp, BroadcastOp, SqueezeOp, ExpandOp)
_Along = tuple[Optional[int], ...]
_Way = tuple[Hashable, ...]
_Use = tuple[TensorView, _Along, _Way]
"""A row as a reader needs it; along, way: see `_Copy`."""
MOST_COPIES = 2000
"""If there were more, uses of inputs stay as they are, and the definition is cut into several kernels instead."""


def separate_rows(fusion: Fusion) -> None:
    """Compute what comes from rows once for each place where it is used, in place, if two axes of a tensor would have one loop.

    A row is an input with one axis, or positions. Before: no axis is open. After: results keep their names; what is used in one place stays as it was; other
    uses of an input read it as a lookup at its own positions, whose axes are no input's.

    Positions are first told apart by the axes that are added and dropped on the way to their readers, so that those of two tensors, if they are counted once,
    still tie the loops of both. Where that is not enough, uses are in one place if they have the same loops once every use reads a copy. At last, inputs that
    get more axes are read so, such as coordinates of points, of which all pairs are compared; only if that is enough, as there is a copy in memory otherwise.
    """
    if loop_axes(fusion).conflict is not None:
        _Copies(fusion, set()).make()
    if loop_axes(fusion).conflict is not None:
        _Copies(fusion, _input_rows(fusion.inputs())).make()
    if loop_axes(fusion).conflict is not None and (points := _points(fusion)):
        tried, _ = fusion.clone()
        _Copies(tried, _points(tried)).make()
        if loop_axes(tried).conflict is None:
            _Copies(fusion, points).make()


def axes_of_its_own(tensor: TensorView) -> int:
    """Return the number of axes along which a tensor has several elements."""
    return sum(not axis.is_broadcast() or axis.expanded_extent is not None for axis in logical_axes(tensor))


def _input_rows(inputs: Iterable[Val]) -> set[TensorView]:
    """Return the inputs with one axis."""
    return {t for t in inputs if isinstance(t, TensorView) and axes_of_its_own(t) == 1 and not any(a.expanded_extent for a in logical_axes(t))}


def _points(fusion: Fusion) -> set[TensorView]:
    """Return the inputs with several axes, without repeated ones, that get one more before they meet a tensor of more axes."""
    found: set[TensorView] = set()
    for t in fusion.inputs():
        if isinstance(t, TensorView) and 1 < axes_of_its_own(t) == len(logical_axes(t)) and not any(a.expanded_extent for a in logical_axes(t)):
            pending = [t]
            while pending and t not in found:
                uses = [e for e in pending.pop().uses() if isinstance(e, STEPS) or is_plain_copy(e)]
                found.update([t] if any(isinstance(e, BroadcastOp) for e in uses) else [])
                pending += [out for e in uses if len(e.tensor_inputs) == 1 for out in e.tensor_outputs]
    return found


def _with_what_follows(fusion: Fusion, rows: set[TensorView]) -> set[TensorView]:
    """Return `rows`, and what follows from these, from positions and from single values; of the outputs those with one axis. Memory that a scatter writes to is
    none: there is one of it."""
    rows = set(rows)
    outputs = {t for t in fusion.tensor_outputs() if axes_of_its_own(t) > 1}
    outputs |= {e.memory for e in fusion.tensor_exprs() if isinstance(e, ScatterStoreOp)}
    for expr in fusion.tensor_exprs():
        is_step = (isinstance(expr, STEPS) or is_plain_copy(expr)) and expr.tensor_outputs[0] not in outputs
        if is_step and all(t in rows or not axes_of_its_own(t) for t in expr.tensor_inputs):
            rows.update(expr.tensor_outputs)
    return rows


class _Copies:
    """Copies of what follows from positions, and from some inputs; if there are any, copies have a place for each of their loops, else for each way to their
    readers, which is known before they are copied. made: operands first. readers: (reader, what it read, what it reads instead)."""

    def __init__(self, fusion: Fusion, inputs: set[TensorView]) -> None:
        self.fusion, self.of_inputs = fusion, bool(inputs)
        self.rows = _with_what_follows(fusion, inputs)
        self.made: list[_Copy] = []
        self.readers: list[tuple[Expr, TensorView, TensorView]] = []

    def make(self) -> None:
        """Copy for each use, then keep one copy for each place."""
        known: dict[_Use, TensorView] = {}
        for expr in self.fusion.tensor_exprs():
            if expr.tensor_outputs[0] not in self.rows and axes_of_its_own(expr.tensor_outputs[0]) > 1:
                for tensor in dict.fromkeys(t for t in expr.read_by_loops if t in self.rows and axes_of_its_own(t)):
                    self._copy_for(expr, tensor, {} if self.of_inputs else known)
                    if self.of_inputs and len(self.made) > MOST_COPIES:
                        return self._undo()
        self._merge()

    def _copy_for(self, reader: Expr, tensor: TensorView, known: dict[_Use, TensorView]) -> None:
        first = len(self.made)
        operand = self._copied((tensor, tuple(range(tensor.ndim)), ()), known)
        for copy in self.made[first:]:
            copy.operand = operand
        self.fusion.replace_input(reader, tensor, operand)
        self.readers.append((reader, tensor, operand))

    def _undo(self) -> None:
        for reader, tensor, operand in self.readers:
            self.fusion.replace_input(reader, operand, tensor)

    def _copied(self, wanted: _Use, known: dict[_Use, TensorView]) -> TensorView:
        """Return a copy, with axes of its own, of copies of its operands. known: copies that may be shared."""
        pending = [wanted]
        while pending:
            use = pending[-1]
            operands = [] if use in known else self._operands(use)
            missing = [v for v in operands if isinstance(v, tuple) and v not in known]
            if missing:
                pending += reversed(missing)
                continue
            pending.pop()
            if use not in known:
                tensor, along, way = use
                inputs = [known[v] if isinstance(v, tuple) else v for v in operands]
                expr = tensor.definition()
                known[use] = self._read_again(tensor) if expr is None else compute_again(self.fusion, expr, inputs)
                self.made.append(_Copy(tensor, known[use], along, way))
        return known[wanted]

    def _operands(self, use: _Use) -> list[Val | _Use]:
        """Return what a row is computed from, other rows as it needs them."""
        tensor, along, way = use
        expr = tensor.definition()
        if expr is None:
            return []
        if isinstance(expr, (BroadcastOp, SqueezeOp)):
            way = (*way, (type(expr), expr.attributes["flags"]))
        along = _along_of_inputs(expr, along)
        return [(v, along, way) if isinstance(v, TensorView) and v in self.rows else v for v in expr.inputs]

    def _read_again(self, tensor: TensorView) -> TensorView:
        copy = leading_part(self.fusion, tensor, logical_axes(tensor))
        copy.definition().attributes["reading"] = len(self.made)  # type: ignore[union-attr]
        return copy

    def _merge(self) -> None:
        """Keep one copy for each place, and the original where it has one place, as do its operands."""
        axes = loop_axes(self.fusion)
        places = [copy.loops(axes) if self.of_inputs else copy.way for copy in self.made]
        of: dict[TensorView, set[Hashable]] = {}
        for copy, place in zip(self.made, places):
            of.setdefault(copy.original, set()).add(place)
        kept: dict[tuple[TensorView, Hashable], TensorView] = {}
        stays: set[TensorView] = set()
        for copy, place in zip(self.made, places):
            original, expr = copy.original, copy.original.definition()
            if len(of[original]) == 1 and (expr is None or all(t in stays for t in expr.tensor_inputs if t in of)):
                stays.add(original)
            other = original if original in stays else kept.setdefault((original, place), copy.tensor)
            if other is not copy.tensor:
                self.fusion.replace_inputs(copy.tensor.uses(), copy.tensor, other)


class _Copy:
    """A copy for one reader. operand: what the reader reads instead, this copy or what is computed from it. along: the axes of `operand` that it runs along.
    way: the axes that are added and dropped between the two."""

    def __init__(self, original: TensorView, tensor: TensorView, along: _Along, way: _Way) -> None:
        self.original, self.tensor, self.along, self.way = original, tensor, along, way
        self.operand = tensor

    def loops(self, axes: LoopAxes) -> Hashable:
        """Return the loop of each axis. If two axes of the operand still have one loop, for another reason than this row, also which of them it is."""
        loops = [axes.of(axis) for axis in logical_axes(self.operand)]
        of_axes = [(axes.of(axis), at) for axis, at in zip(logical_axes(self.tensor), self.along)]
        return tuple((loop, at if loops.count(loop) > 1 and loop is not None else None) for loop, at in of_axes)


def _along_of_inputs(expr: Expr, along: _Along) -> _Along:
    """Return the axes along which the operands of a step run. along: those of its result."""
    places = iter(along)
    if isinstance(expr, BroadcastOp):
        return tuple(place for place, is_new in zip(along, expr.attributes["flags"]) if not is_new)
    if isinstance(expr, SqueezeOp):
        return tuple(None if is_dropped else next(places) for is_dropped in expr.attributes["flags"])
    return along


__all__ = ["separate_rows"]
