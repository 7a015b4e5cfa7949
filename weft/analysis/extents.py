"""One expression per extent: axes that are the same share one Sym, so that generated code and proofs see equal sizes as equal.

Owns the choice of the representative and the list of equalities that the host must check.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import place_text
from ..expr import Number, Sym, is_int, substitute
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp, ScatterOp, ScatterStoreOp
from ..ir.values import Expr, IterDomain, TensorView, no_reductions
from ..ops.lookups import row_extents
from .axes import AxisMaps


@dataclass(frozen=True)
class SizeEquality:
    """Extents `a` and `b` must be equal at run time; `what` names the axes for the error, `expr` is the operation that needs it, if one is known.

    is_limit: b may be smaller than a, too.
    """

    a: Sym
    b: Sym
    what: str
    expr: Expr | None = None
    is_limit: bool = False

    @property
    def reason(self) -> str:
        """The op that makes the extents equal: `mul makes them equal, at model.py:41: y = x * scale`."""
        if self.expr is None:
            return "the definition makes them equal"
        verb = "lets the second be as large as the first at most" if self.is_limit else "makes them equal"
        return f"{self.expr.op_name.removesuffix('_store')} {verb}" + ("" if self.expr.line is None else f", at {place_text(self.expr.line)}")

    def holds(self, a: Number, b: Number) -> bool:
        """Tell whether the values of the two extents satisfy it."""
        return a == b or self.is_limit and b < a  # type: ignore[operator]


def canonicalize_extents(fusion: Fusion) -> list[SizeEquality]:
    """Replace every extent by the representative of its exact class, in place; return the equalities to check.

    A constant is preferred, then the size of the earliest input.
    """
    maps = AxisMaps(fusion)
    classes: dict[IterDomain, list[tuple[TensorView, IterDomain]]] = {}
    for tensor in fusion.tensors():
        for axis in tensor.get_maybe_root_domain():
            if not axis.is_broadcast():
                classes.setdefault(maps.exact(axis), []).append((tensor, axis))
    replacement: dict[Sym, Sym] = {}
    checks: list[SizeEquality] = []
    meeting = _Meetings(fusion, maps)
    for key, members in classes.items():
        chosen = next((a.sym for _, a in members if a.sym.is_const), members[0][1].sym)
        first = next(t for t, a in members if a.sym is chosen)
        for tensor, axis in members:
            if axis.sym is not chosen and axis.sym not in replacement and not axis.sym.is_const:
                replacement[axis.sym] = chosen
                checks.append(SizeEquality(chosen, axis.sym, f"an axis of T{first.name} and an axis of T{tensor.name}", meeting.of(key, axis.sym)))
    if replacement:
        substitute_extents(fusion, _transitive(replacement))
    return checks + _limits(fusion)


def _limits(fusion: Fusion) -> list[SizeEquality]:
    """Return the limits of the axes of the index of each gather and scatter: the axes of the indexed tensor, except the indexed one, and all axes of the tensor
    that is scattered."""
    found: list[SizeEquality] = []
    for expr in fusion.tensor_exprs():
        if isinstance(expr, LookupOp) and expr.op_name == "gather" and not expr.is_masked:
            at = [not isinstance(p, Along) or p != Along(d) for d, p in enumerate(expr.positions)]
            found += _limit(expr, expr.source, expr.tensor_outputs[0], at)
        elif isinstance(expr, ScatterOp) and expr.has_rows:
            found += [SizeEquality(a, b, "axes of rows that are scattered and of their target", expr) for a, b in row_extents(expr) if a is not b]
        elif isinstance(expr, ScatterStoreOp) and "places" in expr.attributes:
            continue  # its sizes were compared as those of the scatter
        elif isinstance(expr, (ScatterOp, ScatterStoreOp)):
            base, index, source = expr.inputs if isinstance(expr, ScatterOp) else (expr.memory, expr.inputs[1], None)
            assert isinstance(base, TensorView) and isinstance(index, TensorView)
            found += _limit(expr, base, index, [d == expr.attributes["dim"] for d in range(base.ndim)])
            if isinstance(source, TensorView):
                found += _limit(expr, source, index, [axis.is_broadcast() for axis in no_reductions(source.get_logical_domain())])
    return found


def _limit(expr: Expr, source: TensorView, index: TensorView, is_free: list[bool]) -> list[SizeEquality]:
    """Limit the axes of `index` by those of `source`, which `expr` reads or writes at the same place, except where `is_free`."""
    axes = zip(no_reductions(source.get_logical_domain()), no_reductions(index.get_logical_domain()), is_free) if source.ndim == index.ndim else ()
    return [
        SizeEquality(a.logical_extent, b.logical_extent, f"axes of T{source.name} and T{index.name}", expr, is_limit=True)
        for a, b, free in axes
        if not free and a.logical_extent is not b.logical_extent and not is_int(b.logical_extent, 1)
    ]


class _Meetings:
    """Finds the operation that requires two extents to be equal; searched only if extents differ."""

    def __init__(self, fusion: Fusion, maps: AxisMaps) -> None:
        self.fusion, self.maps = fusion, maps
        self._found: dict[tuple[IterDomain, Sym], Expr] | None = None

    def of(self, key: IterDomain, extent: Sym) -> Expr | None:
        """Return the first expression of whose inputs one has `extent` and another has another one, along an axis of the class `key`."""
        if self._found is None:
            self._found = self._all()
        return self._found.get((key, extent))

    def _all(self) -> dict[tuple[IterDomain, Sym], Expr]:
        found: dict[tuple[IterDomain, Sym], Expr] = {}
        for expr in self.fusion.tensor_exprs():
            if len(expr.tensor_inputs) < 2:
                continue
            extents: dict[IterDomain, dict[Sym, None]] = {}
            for tensor in expr.tensor_inputs:
                for axis in no_reductions(tensor.get_logical_domain()):
                    if not axis.is_broadcast():
                        extents.setdefault(self.maps.exact(axis), {})[axis.sym] = None
            for key, syms in extents.items():
                if len(syms) > 1:
                    for sym in syms:
                        found.setdefault((key, sym), expr)
        return found


def _transitive(replacement: dict[Sym, Sym]) -> dict[Sym, Sym]:
    out = {}
    for key, value in replacement.items():
        seen = {key}
        while value in replacement and value not in seen:
            seen.add(value)
            value = replacement[value]
        out[key] = value
    return out


def substitute_extents(fusion: Fusion, mapping: dict[Sym, Sym]) -> None:
    """Replace sizes in the extents of all axes, in place."""
    seen: set[IterDomain] = set()
    for tensor in fusion.tensors():
        domain = tensor.domain()
        for axis in (*domain.maybe_root, *domain.logical, *domain.loop, *domain.maybe_allocation):
            if axis not in seen:
                seen.add(axis)
                axis._extent = substitute(axis._extent, mapping)
                if axis.expanded_extent is not None:
                    axis.expanded_extent = substitute(axis.expanded_extent, mapping)
