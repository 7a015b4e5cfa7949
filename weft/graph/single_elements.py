"""Sizes that are 1 in one call, of axes that are innermost in memory.

Owns the rule of which of them a variant of the definition is made for. Such an axis would otherwise be the innermost loop of every kernel, and none would have
vectors along the axis that is contiguous in this call. Outer axes of one element cost nothing: they merge with the others. Read first: `InnerSizes`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.axes import AxisMaps
from ..expr import Sym
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp
from ..ir.values import (
    ELEMENTWISE, IterDomain, RandomOp, ReductionOp, TensorView, WelfordOp,
)  # fmt: skip

FOLLOWED = (*ELEMENTWISE, RandomOp, ReductionOp, ScanOp, WelfordOp)
"""Ops that mean the same whether an axis of one element is a broadcast axis or not. Lookups and the like refer to axes by their kind."""


class InnerSizes:
    """The symbolic sizes of a definition's inputs, innermost first. inputs: for each input, the sizes that belong to each axis that has one, because other
    tensors have the same axis; empty for an axis that has to stay.
    """

    def __init__(self, fusion: Fusion) -> None:
        maps = AxisMaps(fusion)
        sizes: dict[IterDomain, dict[Sym, None]] = {}
        fixed: set[IterDomain] = set()
        for expr in fusion.tensor_exprs():
            if not isinstance(expr, FOLLOWED):
                fixed.update(maps.exact(a) for t in (*expr.tensor_inputs, *expr.tensor_outputs) for a in (*t.get_maybe_root_domain(), *t.get_logical_domain()))
            elif isinstance(expr, ScanOp) and expr.start is not None:  # its start value counts, although there is one element only
                fixed.add(maps.exact(expr.tensor_outputs[0].get_logical_domain()[expr.attributes["dim"]]))
        for tensor in fusion.tensors():
            for axis in tensor.get_maybe_root_domain():
                if not axis.is_broadcast() and not axis.is_open():
                    sizes.setdefault(maps.exact(axis), {})[axis.sym] = None
        self.inputs: list[list[tuple[Sym, ...]]] = []
        for value in fusion.inputs():
            if isinstance(value, TensorView):
                axes = [maps.exact(a) for a in reversed(value.domain().maybe_allocation) if a.is_iteration()]
                self.inputs.append([() if key in fixed else tuple(sizes.get(key, ())) for key in axes])

    def ones(self, is_one: Callable[[Sym], bool]) -> frozenset[Sym]:
        """Return the sizes that are 1 and whose axes have no longer ones inside them, but some outside, in an input."""
        found: set[Sym] = set()
        for axes in self.inputs:
            inner: list[Sym] = []
            for syms in axes:
                if not syms or not all(map(is_one, syms)):
                    found.update(inner)
                    break
                inner += syms
        return frozenset(found)


__all__ = ["InnerSizes"]
