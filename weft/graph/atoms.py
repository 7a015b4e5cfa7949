"""Extents factored until both sides of a reshape have the same axes.

Owns the factors (atoms) of every axis of a definition, and which reshapes have none in common. Axes that an op maps to each other have the same atoms; a
reshape says where the axes of its two shapes must be cut; a slice, pad or cat carries cuts over where its offsets are multiples.
Read first: `Atoms.activate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..analysis.axes import UnionFind, pairwise, siblings
from ..expr import ONE, ZERO, Sym, floordiv, mul, product, variables
from ..ir.block_ops import BlockFoldOp, BlockSampleOp
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, CatOp, LookupOp, ReshapeOp, ScanOp, ScatterOp, named_axes
from ..ir.values import IterDomain
from ..ops.build import is_plain_broadcast, logical_axes
from .questions import Questions


@dataclass(eq=False)
class _Regrouped:
    """Two lists of classes whose elements are the same in row-major order."""

    sides: tuple[list[IterDomain], list[IterDomain]]


@dataclass(eq=False)
class _Shifted:
    """Two classes, a source's and a result's, whose elements are the same up to a shift by `offset`. is_part: the result is a part of the source."""

    sides: tuple[IterDomain, IterDomain]
    offset: Sym
    is_part: bool


class Atoms:
    """The atoms of the axes of a fusion without open axes. kept: reshapes without a common factorization."""

    def __init__(self, fusion: Fusion, questions: Questions) -> None:
        self.questions = questions
        self._sets = UnionFind()
        self._atoms: dict[IterDomain, list[Sym]] = {}
        self._relations: dict[IterDomain, list[_Regrouped | _Shifted]] = {}
        self._frozen: set[IterDomain] = set()
        self._undo: list[tuple[IterDomain, list[Sym]]] = []
        self.kept: set[ReshapeOp] = set()
        self._join(fusion)
        self._relate(fusion)
        for expr in fusion.tensor_exprs():
            if isinstance(expr, ReshapeOp) and not self.activate(expr):
                self.kept.add(expr)

    def of(self, axis: IterDomain) -> list[Sym]:
        """Return the atoms of an axis, outermost first; its own extent if it is not cut."""
        found = self._atoms.get(self._sets.find(axis))
        return [axis.logical_extent] if found is None or len(found) == 1 else found

    # -- which axes belong together
    def _join(self, fusion: Fusion) -> None:
        for expr in fusion.tensor_exprs():
            for out in expr.tensor_outputs:
                for source in expr.tensor_inputs:
                    if not isinstance(expr, ReshapeOp):
                        self._join_pairs(pairwise(source, out, expr))
            for other in expr.tensor_outputs[1:]:
                self._join_pairs(siblings(expr.tensor_outputs[0], other))
            if isinstance(expr, ScatterOp) and expr.has_rows:
                self._join_rows(expr)

    def _join_pairs(self, pairs: Iterable[tuple[IterDomain, IterDomain]]) -> None:
        for a, b in pairs:
            if not is_plain_broadcast(a) and not is_plain_broadcast(b):
                self._sets.union(a, b)

    def _relate(self, fusion: Fusion) -> None:
        """Relate and freeze classes, which are whole: none is joined any more."""
        for expr in fusion.tensor_exprs():
            if isinstance(expr, LookupOp):
                self._relate_lookup(expr)
            elif isinstance(expr, CatOp):
                self._relate_cat(expr)
            elif isinstance(expr, ScanOp):
                self._freeze(logical_axes(t)[expr.attributes["dim"]] for t in expr.elements)
            elif isinstance(expr, (BlockFoldOp, BlockSampleOp)):  # blocks are neighbours along one axis, which must not be cut
                self._freeze(logical_axes(t)[-1] for t in (expr.tensor_inputs[0], expr.tensor_outputs[0]))
            elif isinstance(expr, ScatterOp) and expr.has_rows:
                self._freeze(named_axes(expr, logical_axes(expr.tensor_inputs[0])))  # an index gives positions along them
            elif isinstance(expr, ScatterOp):
                self._freeze(a for t in (*expr.tensor_inputs, *expr.tensor_outputs) for a in logical_axes(t))

    def _join_rows(self, expr: ScatterOp) -> None:
        """Join the axes of a scatter of rows."""
        base, index, source = map(logical_axes, expr.tensor_inputs)
        for dim, axis in enumerate(source):
            place = expr.target_axis(dim)
            self._join_pairs([(axis, index[dim]), *([] if place is None else [(base[place], axis), (base[place], index[dim])])])

    def _freeze(self, axes: Iterable[IterDomain]) -> None:
        self._frozen.update(map(self._sets.find, axes))

    def _relate_lookup(self, expr: LookupOp) -> None:
        results = logical_axes(expr.tensor_outputs[0])
        self._freeze(axis for order in expr.read_whole[1:] for axis in logical_axes(order))
        for axis, place in zip(logical_axes(expr.source), expr.positions):
            if not isinstance(place, Along):
                self._freeze([axis])
            elif place.offset is not ZERO or self._sets.find(axis) is not self._sets.find(results[place.axis]):
                self._shift(axis, results[place.axis], place.offset, not expr.is_masked)

    def _relate_cat(self, expr: CatOp) -> None:
        dim, begin = expr.attributes["dim"], ZERO
        out = logical_axes(expr.tensor_outputs[0])[dim]
        for tensor in expr.tensor_inputs:
            axis = logical_axes(tensor)[dim]
            self._shift(axis, out, begin, False)
            begin = begin + axis.logical_extent

    def _shift(self, axis: IterDomain, result: IterDomain, offset: Sym, is_part: bool) -> None:
        """Relate an axis to a shifted one; the offset must not depend on values that change between calls."""
        if is_plain_broadcast(axis) or is_plain_broadcast(result) or not all(".size[" in str(v) for v in variables(offset)):
            self._freeze([axis, result])
            return
        self._add(_Shifted((self._sets.find(axis), self._sets.find(result)), offset, is_part))

    def _add(self, relation: _Regrouped | _Shifted) -> None:
        members = [c for side in relation.sides for c in side] if isinstance(relation, _Regrouped) else list(relation.sides)
        for member in dict.fromkeys(members):
            self._relations.setdefault(member, []).append(relation)

    # -- cuts
    def activate(self, reshape: ReshapeOp) -> bool:
        """Cut the axes of both sides of a reshape wherever one side has the end of an axis; return False, and change nothing, if that is impossible."""
        groups = reshape.attributes.get("groups")
        if groups is None:
            return False
        old, new = logical_axes(reshape.tensor_inputs[0]), logical_axes(reshape.tensor_outputs[0])
        self._undo = []
        added: list[_Regrouped] = []
        for before, after in groups:
            relation = _Regrouped(([self._class(old[d]) for d in before], [self._class(new[d]) for d in after]))
            added.append(relation)
            self._add(relation)
            if not self._spread_all(relation):
                self._take_back(added)
                return False
        return True

    def _take_back(self, added: Sequence[_Regrouped]) -> None:
        for axis, atoms in reversed(self._undo):
            self._atoms[axis] = atoms
        for relations in self._relations.values():
            relations[:] = [r for r in relations if not any(r is a for a in added)]

    def _class(self, axis: IterDomain) -> IterDomain:
        found = self._sets.find(axis)
        self._atoms.setdefault(found, [axis.logical_extent])
        return found

    def _extent(self, member: IterDomain) -> Sym:
        return product(self._atoms.setdefault(member, [member.logical_extent]))

    def _spread_all(self, relation: _Regrouped) -> bool:
        """Apply all ends and cuts of each side to the other."""
        for mine, other in (relation.sides, relation.sides[::-1]):
            inside: Sym = ONE
            for member in reversed(mine):
                for atom in reversed(list(self._atoms[member])):
                    inside = mul(inside, atom)
                    if not self._cut_at(other, inside):
                        return False
        return True

    def _cut_at(self, members: Sequence[IterDomain], place: Sym) -> bool:
        """Cut the axis of a side that contains `place` (elements from the inner end); True if an axis already ends there."""
        inside: Sym = ONE
        for member in reversed(members):
            whole = mul(inside, self._extent(member))
            if self.questions.is_same(place, inside):
                return True
            if self.questions.is_less(place, whole):
                return self.questions.divides(inside, place) and self._cut(member, floordiv(place, inside))
            inside = whole
        return self.questions.is_same(place, inside)

    def _cut(self, member: IterDomain, place: Sym) -> bool:
        """Cut one axis so that an atom begins at `place`, and the axes related to it."""
        ask, atoms = self.questions, self._atoms.setdefault(member, [member.logical_extent])
        inside: Sym = ONE
        for k in reversed(range(len(atoms))):
            if ask.is_same(place, inside):
                return True
            whole = mul(inside, atoms[k])
            if ask.is_less(place, whole):
                if member in self._frozen or not ask.divides(inside, place):
                    return False
                inner = floordiv(place, inside)
                if not ask.divides(inner, atoms[k]):
                    return False
                self._undo.append((member, atoms))
                self._atoms[member] = [*atoms[:k], floordiv(atoms[k], inner), inner, *atoms[k + 1 :]]
                return all(self._carry(relation, member, place) for relation in list(self._relations.get(member, ())))
            inside = whole
        return True

    def _carry(self, relation: _Regrouped | _Shifted, member: IterDomain, place: Sym) -> bool:
        """Apply a new cut of `member` to the other side of a relation."""
        if isinstance(relation, _Shifted):
            ask = self.questions
            first, second = relation.sides
            fits = all(ask.divides(place, s) for s in (relation.offset, self._extent(first), self._extent(second)))
            if fits and not (relation.is_part and member is first) and ask.is_same(place, self._extent(first if member is second else second)):
                return False  # the other side would have one part less
            return fits and self._cut(second if member is first else first, place)
        for mine, other in (relation.sides, relation.sides[::-1]):
            inside: Sym = ONE
            for candidate in reversed(mine):
                if candidate is member and not self._cut_at(other, mul(place, inside)):
                    return False
                inside = mul(inside, self._extent(candidate))
        return True
