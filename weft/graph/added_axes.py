"""Axes of one element that are added and dropped again: they go, with all that lies between.

`x.unflatten(-1, (1, 64))`, a norm, and `flatten(-2)`: an axis of one group that nothing is along. Lookups move up only to tensors with their own axes, so a
rotation behind it would be a kernel of its own. Where a squeeze comes first it is the other way round (`squeezes.py`). Read first: `drop_added_axes`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.axes import UnionFind, pairwise
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, IterDomain, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorView
from ..ops.build import is_plain_broadcast, logical_axes

PASSED = (PointwiseOp, LoadStoreOp, BroadcastOp, ExpandOp, SqueezeOp, ReductionOp)
"""Ops that do the same without an axis of one element."""

ENDS = (PointwiseOp, LoadStoreOp, ExpandOp)
"""Ops whose results may be outputs: they are computed without the axis, which is then added."""


def drop_added_axes(fusion: Fusion) -> None:
    """Remove, in place, axes that a broadcast adds, that stay of one element, and that squeezes drop before any input or other op has them.

    Before: no axis is open, and no reshape is left but those that stay. After: tensors keep their names; a broadcast or squeeze of nothing else is a copy;
    outputs have the axes they had, added last.
    """
    exprs = fusion.tensor_exprs()
    if any(isinstance(e, SqueezeOp) for e in exprs) and any(isinstance(e, BroadcastOp) for e in exprs):
        _Dropping(fusion, exprs).run()


def _squeezed(expr: SqueezeOp) -> list[IterDomain]:
    return [axis for axis, flag in zip(logical_axes(expr.tensor_inputs[0]), expr.attributes["flags"]) if flag]


class _Dropping:
    """kept, dropped: representatives of axes that something needs, and that squeezes drop; they are found in the sets once all are joined."""

    def __init__(self, fusion: Fusion, exprs: list[Expr]) -> None:
        self.fusion, self.exprs = fusion, exprs
        self.sets = UnionFind()
        needed: list[IterDomain] = []
        for tensor in fusion.tensors():
            if not self._is_free(tensor):
                needed += filter(is_plain_broadcast, tensor.get_logical_domain())
        for expr in exprs:
            needed += self._joined(expr)
        self.kept = set(map(self.sets.find, needed))
        self.dropped = {self.sets.find(axis) for expr in exprs if isinstance(expr, SqueezeOp) for axis in _squeezed(expr)}

    def _is_free(self, tensor: TensorView) -> bool:
        """True for a tensor whose axes only ops see that do the same without one of them."""
        domain, made = tensor.domain(), tensor.definition()
        is_seen = tensor in self.fusion.aliases.values() or tensor.is_fusion_output and not isinstance(made, ENDS)
        is_plain = domain.root is None and domain.allocation is None and domain.user is None
        return isinstance(made, PASSED) and is_plain and not is_seen and all(isinstance(use, PASSED) for use in tensor.uses())

    def _joined(self, expr: Expr) -> Iterable[IterDomain]:
        """Join the axes that an op maps to each other; return those that it maps to axes of another kind."""
        for out in expr.tensor_outputs:
            for source in expr.tensor_inputs:
                for a, b in pairwise(source, out, expr):
                    if is_plain_broadcast(a) and is_plain_broadcast(b):
                        self.sets.union(a, b)
                    else:
                        yield from filter(is_plain_broadcast, (a, b))

    def _goes(self, axis: IterDomain) -> bool:
        return is_plain_broadcast(axis) and (found := self.sets.find(axis)) in self.dropped and found not in self.kept

    def run(self) -> None:
        stay = {tensor: [not self._goes(axis) for axis in tensor.get_logical_domain()] for tensor in self.fusion.tensors()}
        for expr in self.exprs:
            if isinstance(expr, (BroadcastOp, SqueezeOp)):
                flagged = expr.tensor_outputs[0] if isinstance(expr, BroadcastOp) else expr.tensor_inputs[0]
                self._filter(expr, stay[flagged])
        for tensor, flags in stay.items():
            if not all(flags):
                (self._add_last if tensor.is_fusion_output else self._shrink)(tensor, flags)

    def _shrink(self, tensor: TensorView, stay: list[bool]) -> None:
        domain = tensor.domain()
        domain.contiguity = [c for c, stays in zip(domain.contiguity, stay) if stays]
        domain.logical = [axis for axis, stays in zip(domain.logical, stay) if stays]
        domain.loop = list(domain.logical)

    def _add_last(self, output: TensorView, stay: list[bool]) -> None:
        """Let a tensor without the axes stand for an output everywhere, and the output be that tensor with them."""
        fusion, made = self.fusion, output.definition()
        assert made is not None
        inner = fusion.new_tensor([fusion.copy_axis(axis) for axis, stays in zip(output.get_logical_domain(), stay) if stays], output.dtype())
        if output.name in fusion.held:
            fusion.held[inner.name] = fusion.held[output.name]
        for use in list(output.uses()):
            fusion.replace_input(use, output, inner)
        fusion.remove(made)
        made.outputs = [inner]
        fusion.register(made)
        fusion.register(BroadcastOp([inner], [output], op="broadcast", flags=tuple(not stays for stays in stay)))

    def _filter(self, expr: Expr, stay: list[bool]) -> None:
        """Leave out the flags of axes that go; without any other one the op is a copy."""
        flags = tuple(flag for flag, stays in zip(expr.attributes["flags"], stay) if stays)
        if any(flags) or all(stay):
            expr.attributes["flags"] = flags
            return
        source, out = expr.tensor_inputs[0], expr.tensor_outputs[0]
        self.fusion.remove(expr)
        self.fusion.register(LoadStoreOp([source], [out]))
