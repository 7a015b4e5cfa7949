"""One expression per extent: axes that are the same share one Sym, so that generated code and proofs see equal sizes as equal.

Owns the choice of the representative and the list of equalities that the host must check.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..expr import Sym, substitute
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, TensorView
from .axes import AxisMaps


@dataclass(frozen=True)
class SizeEquality:
    """Extents `a` and `b` must be equal at run time; `what` names the axes for the error."""

    a: Sym
    b: Sym
    what: str


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
    for members in classes.values():
        chosen = next((a.sym for _, a in members if a.sym.is_const), members[0][1].sym)
        first = next(t for t, a in members if a.sym is chosen)
        for tensor, axis in members:
            if axis.sym is not chosen and axis.sym not in replacement and not axis.sym.is_const:
                replacement[axis.sym] = chosen
                checks.append(SizeEquality(chosen, axis.sym, f"an axis of T{first.name} and an axis of T{tensor.name}"))
    if replacement:
        _substitute_all(fusion, _transitive(replacement))
    return checks


def _transitive(replacement: dict[Sym, Sym]) -> dict[Sym, Sym]:
    out = {}
    for key, value in replacement.items():
        seen = {key}
        while value in replacement and value not in seen:
            seen.add(value)
            value = replacement[value]
        out[key] = value
    return out


def _substitute_all(fusion: Fusion, mapping: dict[Sym, Sym]) -> None:
    seen: set[IterDomain] = set()
    for tensor in fusion.tensors():
        domain = tensor.domain()
        for axis in (*domain.maybe_root, *domain.logical, *domain.loop, *domain.maybe_allocation):
            if axis not in seen:
                seen.add(axis)
                axis._extent = substitute(axis._extent, mapping)
                if axis.expanded_extent is not None:
                    axis.expanded_extent = substitute(axis.expanded_extent, mapping)
