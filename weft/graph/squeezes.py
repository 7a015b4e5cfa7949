"""Axes of one element that are dropped and added again: they stay, also through the pointwise ops between.

A tensor without such an axis would lack a loop between two that have it, and no kernel could compute all three. Read first: `fold_squeezes`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, Expr, LoadStoreOp, PointwiseOp, SqueezeOp, TensorView, Val
from ..ops.build import logical_axes

Flags = tuple[bool, ...]


def fold_squeezes(fusion: Fusion) -> None:
    """Replace broadcast(f(squeeze(x), y)) by f(x, broadcast(y)), in place, for pointwise f, where both are the same axes and nobody else reads between them.

    Before: no axis is open. After: results keep their names.
    """
    exprs = fusion.tensor_exprs()
    if any(isinstance(e, SqueezeOp) for e in exprs):
        _Folding(fusion, exprs).run()


class _Folding:
    """added: the axes that all readers of a tensor add in the end, for results of pointwise ops; wide: tensors that have these axes."""

    def __init__(self, fusion: Fusion, exprs: Sequence[Expr]) -> None:
        self.fusion, self.exprs = fusion, exprs
        self.added: dict[TensorView, Flags] = {}
        self.wide: dict[tuple[TensorView, Flags], TensorView] = {}
        for expr in reversed(exprs):
            out = expr.tensor_outputs[0]
            readers = {self._added_by(use) for use in out.uses()}
            if isinstance(expr, PointwiseOp) and not out.is_fusion_output and len(readers) == 1 and (flags := readers.pop()):
                self.added[out] = flags

    def _added_by(self, use: Expr) -> Flags | None:
        return use.attributes["flags"] if isinstance(use, BroadcastOp) else self.added.get(use.outputs[0])  # type: ignore[call-overload]

    def run(self) -> None:
        for expr in self.exprs:  # operands first: a tensor has its wide form, if it gets one, before its readers ask
            out = expr.tensor_outputs[0]
            if isinstance(expr, BroadcastOp):
                found = self._with_axes(expr.tensor_inputs[0], expr.attributes["flags"])
                if found is not None:
                    self.fusion.remove(expr)
                    self.fusion.register(LoadStoreOp([found], [out]))
            elif out in self.added and any(self._with_axes(t, self.added[out]) is not None for t in expr.tensor_inputs):
                self._compute_wide(expr, out, self.added[out])

    def _with_axes(self, tensor: TensorView, flags: Flags) -> TensorView | None:
        """Return a tensor with the axes of `flags`: the one that was squeezed, unless these are expanded there, or one that was made; None without them."""
        squeeze = tensor.definition()
        if not isinstance(squeeze, SqueezeOp) or squeeze.attributes["flags"] != flags:
            return self.wide.get((tensor, flags))
        source = squeeze.tensor_inputs[0]
        return None if any(a.expanded_extent is not None for a, dropped in zip(logical_axes(source), flags) if dropped) else source

    def _compute_wide(self, expr: Expr, out: TensorView, flags: Flags) -> None:
        """Compute a pointwise op's result with the axes of `flags`."""
        operands: dict[Val, Val] = {}
        for tensor in expr.tensor_inputs:
            found = self._with_axes(tensor, flags)
            operands[tensor] = self._broadcast(tensor, flags) if found is None else found
        found = self.wide[out, flags] = self._like(out, flags)
        self.fusion.register(PointwiseOp([operands.get(v, v) for v in expr.inputs], [found], **expr.attributes))

    def _broadcast(self, tensor: TensorView, flags: Flags) -> TensorView:
        found = self.wide[tensor, flags] = self._like(tensor, flags)
        self.fusion.register(BroadcastOp([tensor], [found], op="broadcast", flags=flags))
        return found

    def _like(self, tensor: TensorView, flags: Flags) -> TensorView:
        """Return a new tensor with the axes of `tensor`, and new ones of one element where `flags` says so."""
        own = iter(logical_axes(tensor))
        axes = [self.fusion.new_axis(1, IterType.broadcast) if new else self.fusion.copy_axis(next(own)) for new in flags]
        return self.fusion.new_tensor(axes, tensor.dtype())
