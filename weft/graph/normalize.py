"""The normal form of a definition: no reshape is left but those without a common factorization, and cats are selections.

Owns the rewriting of a fusion whose axes are all decided: each axis becomes its atoms (`weft.graph.atoms`), so that a reshape is nothing, and an input or
output of the user is the same memory with more axes. Names of tensors stay. Read first: `normalize`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..analysis.extents import SizeEquality, canonicalize_extents
from ..analysis.precision import is_stored_narrow
from ..expr import ZERO, Sym, floordiv, product
from ..ir.block_ops import loop_sources
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, BagOp, CatOp, Fixed, LookupOp, Position, ReshapeOp, RollOp, ScanOp, ScatterOp, TorchOp
from ..ir.values import (
    BroadcastOp, ExpandOp, Expr, IterDomain, LoadStoreOp, PointwiseOp, ReductionOp, Roll, SqueezeOp, TensorView, UserAxes,
)  # fmt: skip
from ..ops.build import cast, is_plain_broadcast, logical_axes
from .added_axes import drop_added_axes
from .atoms import Atoms
from .compared_products import round_compared_products
from .concretize import concretize, has_views, is_open
from .exact_quotients import multiply_by_reciprocals
from .factored_bags import multiply_behind_bags, read_in_any_order
from .factored_sums import share_factored_sums
from .few_largest import fold_few_largest
from .folded_twice import fold_at_once
from .joined_parts import store_parts_of_rows
from .joined_sums import join_sums
from .lookups import move_lookups_up
from .moved_reshapes import move_reshapes
from .needless_doubles import compute_in_single
from .packed_neighbours import fold_packed_neighbours
from .padded_folds import fold_before_padding
from .picked_sums import look_up_what_sums_pick
from .questions import Questions
from .quotients_behind_sums import divide_behind_sums
from .reversed_scans import find_reversed_scans
from .rolls import find_rolls, place_rolls
from .rows_of_two_axes import separate_rows
from .scatters import has_scatters, scatter_in_kernels
from .selections import select_by_position
from .sliced_sums import slice_shared_sums
from .squeezes import fold_squeezes
from .stacked_folds import fold_stacks
from .stored_windows import store_windows_before_reductions
from .sums_of_pairs import share_sums_of_pairs


def normalize(fusion: Fusion, questions: Questions | None = None) -> Fusion:
    """Return the normal form of `fusion`, which is not changed. See `normalize_in_place`."""
    copy, _ = fusion.clone()
    normalize_in_place(copy, questions)
    return copy


def normalize_in_place(fusion: Fusion, questions: Questions | None = None) -> list[SizeEquality] | None:
    """Bring a fusion into normal form; return the sizes that must be equal in every call, or None if there was nothing to do.

    Before: axes may be open; slices, pads, cats, reshapes as the user wrote them. After: inputs, outputs and names of tensors are the same; every axis is
    decided; a tensor with factored axes has `TensorDomain.user`; reshapes remain only if their sizes do not factor; no CatOp remains, but JoinedOps; doubles of
    which a cast keeps nothing are floats, and quotients by powers of two are products; lookups read tensors in memory, where that is profitable; scans between
    two reversals begin at the last element; topks of a few values are reductions, sums that pick one element are lookups; scatters are writes into a copy; sums
    that differ only in factors of their results are one sum, as are sums whose results are added, and sums of pairs over either axis, if pairs are alike
    both ways; sums of slices are slices of a sum that is there; a reduction of a reduction is one; rows and positions are read and counted once for each
    axis that they are used along; rotations are of inputs, where possible, or else of what a kernel writes; products in what is compared with its own elements
    are rounded by themselves.
    Errors: those of `concretize`.
    """
    questions = questions or Questions()
    find_rolls(fusion)
    find_reversed_scans(fusion)
    if not has_views(fusion) and not is_open(fusion) and not questions.ones:
        equalities = canonicalize_extents(fusion) if has_scatters(fusion) else None  # before what is scattered is cut to the size of the index
        drop_added_axes(fusion)
        fold_squeezes(fusion)
        fold_few_largest(fusion, questions)
        _rewrite_decided(fusion, questions)
        return equalities
    concretize(fusion, questions)
    equalities = canonicalize_extents(fusion)
    fold_few_largest(fusion, questions)
    fold_before_padding(fusion, questions)
    if any(isinstance(e, ReshapeOp) for e in fusion.tensor_exprs()):
        _factor(fusion, questions)
    fold_stacks(fusion)
    store_parts_of_rows(fusion)  # the other cats become selections
    for expr in fusion.tensor_exprs():
        if isinstance(expr, CatOp):
            select_by_position(fusion, expr)
    drop_added_axes(fusion)
    fold_squeezes(fusion)
    _rewrite_decided(fusion, questions)
    return equalities


def _rewrite_decided(fusion: Fusion, questions: Questions) -> None:
    """Apply the passes after which no axis changes any more, each with the reason for its place."""
    multiply_by_reciprocals(fusion)  # a product is exact in the next pass where a quotient is not
    compute_in_single(fusion)  # later passes compare the types of sums and of their terms
    scatter_in_kernels(fusion, questions)  # a scatter can read what a sum picks, so both are made of other ops before lookups move
    look_up_what_sums_pick(fusion)  # a sum that is a lookup is none of those that are merged
    if not fusion.shares_results:  # in a definition by hand they stay two, as in nvFuser, whose users count segments in profiles
        fold_at_once(fusion)  # sums are merged if they are over the same axes, so each has all of its axes first
    share_sums_of_pairs(fusion)  # what is a result of another sum is no sum for the passes that merge them
    share_factored_sums(fusion)  # leaves one sum where there were several, of which the next pass joins different ones
    join_sums(fusion)
    slice_shared_sums(fusion)  # the sums are final, and the slices that it makes are lookups that move
    divide_behind_sums(fusion)  # passes that merge sums compare their terms as they were written
    multiply_behind_bags(fusion)
    read_in_any_order(fusion)  # bags read the inputs themselves, with nothing between for a lookup to move through
    round_compared_products(fusion)  # while each tensor is computed once: lookups that move compute it again
    fold_packed_neighbours(fusion)  # the lookups that it replaces would be moved to inputs
    move_lookups_up(fusion)  # no later pass makes a lookup of a computed tensor
    store_windows_before_reductions(fusion)  # windows are what lookups read in the end
    place_rolls(fusion)  # lookups stand where they stay, so what they leave between inputs and rotations is pointwise
    separate_rows(fusion)  # copies what is computed from rows, after the last pass that changes it


def _factor(fusion: Fusion, questions: Questions) -> None:
    """Replace reshapes by factored axes; those without a common factorization move to inputs and results where they can."""
    atoms = Atoms(fusion, questions)
    if atoms.kept and move_reshapes(fusion, [e for e in fusion.tensor_exprs() if isinstance(e, ReshapeOp) and e in atoms.kept]):
        atoms = Atoms(fusion, questions)
    _Factoring(fusion, atoms).run()


class _Factoring:
    """Replaces axes by their atoms. parts: cut axis -> the new ones."""

    def __init__(self, fusion: Fusion, atoms: Atoms) -> None:
        self.fusion, self.atoms = fusion, atoms
        self.parts: dict[IterDomain, list[IterDomain]] = {}
        self.counts: dict[TensorView, list[int]] = {}

    def run(self) -> None:
        exprs, tensors = self.fusion.tensor_exprs(), self.fusion.tensors()
        before = {t: list(logical_axes(t)) for t in tensors}
        for tensor in tensors:
            self._factor(tensor)
        for expr in exprs:
            _REWRITES.get(type(expr), _unchanged)(self, expr, before)
        alone = {expr: self._alone(expr) for expr in exprs if isinstance(expr, ReshapeOp)}
        for expr, positions in alone.items():
            self._vanish(expr, positions)

    # -- tensors
    def split(self, axis: IterDomain) -> list[IterDomain]:
        """Return the axes that replace `axis`: itself if it is not cut."""
        found = self.parts.get(axis)
        if found is None:
            extents = [axis.logical_extent] if is_plain_broadcast(axis) else self.atoms.of(axis)
            found = self.parts[axis] = [axis] if len(extents) == 1 else [self._part(axis, extent) for extent in extents]
        return found

    def _part(self, axis: IterDomain, extent: Sym) -> IterDomain:
        if axis.is_broadcast():
            return self.fusion.new_axis(1, IterType.broadcast, expanded_extent=extent)
        return self.fusion.new_axis(extent, axis.iter_type)

    def _factor(self, tensor: TensorView) -> None:
        domain = tensor.domain()
        definition = tensor.definition()
        axes = logical_axes(tensor)
        self.counts[tensor] = [len(self.split(a)) for a in axes]
        if isinstance(definition, ReshapeOp):
            domain.root = None
            for axis in domain.logical:
                axis._definition = None
        is_cut = any(len(self.split(a)) > 1 for a in domain.logical)
        if not is_cut:
            domain.loop = list(loop_sources(tensor))
            return
        extents = tuple(a.logical_extent for a in axes)
        places = [p for p, a in enumerate(domain.maybe_allocation) for _ in self.split(a)]
        contiguity = [self._contiguity(c, last) for a, c in zip(domain.maybe_allocation, domain.contiguity) for last in self._is_last(a)]
        domain.user = UserAxes(extents, tuple(self.counts[tensor]), tuple(places))
        domain.contiguity = contiguity
        domain.root = None if domain.root is None else [part for a in domain.root for part in self.split(a)]
        domain.allocation = None if domain.allocation is None else [part for a in domain.allocation for part in self.split(a)]
        domain.logical = [part for a in domain.logical for part in self.split(a)]
        domain.loop = list(loop_sources(tensor))

    def _is_last(self, axis: IterDomain) -> list[bool]:
        count = len(self.split(axis))
        return [k == count - 1 for k in range(count)]

    @staticmethod
    def _contiguity(whole: bool | None, is_last: bool) -> bool | None:
        """Each part is contiguous with the next inner one; the innermost part has the stride of the whole axis."""
        return whole if is_last or whole is None else True

    def _alone(self, expr: ReshapeOp) -> set[int]:
        """Return the positions of the parts of the axes of a reshape's input that it does not change."""
        source, groups = expr.tensor_inputs[0], expr.attributes.get("groups") or ()
        dims = [old[0] for old, new in groups if len(old) == len(new) == 1]
        return {self.place(source, dim) + k for dim in dims for k in range(self.counts[source][dim])}

    def _vanish(self, expr: ReshapeOp, alone: set[int]) -> None:
        """Replace a reshape whose two sides have the same axes by a copy, or remove it. alone: see `_alone`."""
        expr.attributes.pop("groups", None)
        is_view = expr.attributes.pop("is_view", False)
        if expr in self.atoms.kept:
            if not is_view:
                _write_dense(self.fusion, _as_held(self.fusion, expr), alone)
            return
        fusion, source, out = self.fusion, expr.tensor_inputs[0], expr.tensor_outputs[0]
        pairs = list(zip(out.get_logical_domain(), logical_axes(source)))
        for axis, old in pairs:
            if axis.is_iteration():
                axis._extent = old.logical_extent
        fusion.remove(expr)
        fusion.register(LoadStoreOp([source], [out]))
        if all(axis.iter_type is old.iter_type for axis, old in pairs) and not out.is_fusion_output:
            for use in out.uses():
                fusion.replace_input(use, out, source)

    # -- operands
    def place(self, tensor: TensorView, dim: int) -> int:
        """Return the position of the first part of the original axis `dim`."""
        return sum(self.counts[tensor][:dim])

    def widen(self, expr: Expr, source: TensorView, wanted: list[int]) -> None:
        """Give broadcast axes of `source` as many parts as the corresponding axes of the other operands have."""
        flags: list[bool] = []
        for have, want in zip(self.counts[source], wanted):
            flags += [False] * have + [True] * (want - have)
        if any(flags):
            fusion, old = self.fusion, iter(logical_axes(source))
            axes = [fusion.new_axis(1, IterType.broadcast) if new else fusion.copy_axis(next(old)) for new in flags]
            wide = fusion.new_tensor(axes, source.dtype())
            fusion.register(BroadcastOp([source], [wide], op="broadcast", flags=tuple(flags)))
            fusion.replace_input(expr, source, wide)


def _as_held(fusion: Fusion, expr: ReshapeOp) -> ReshapeOp:
    """Return a reshape of what the user holds instead of one that stays, whose input is written to memory: half the bytes."""
    source, out = expr.tensor_inputs[0], expr.tensor_outputs[0]
    if not is_stored_narrow(fusion, source) or out.is_fusion_output:
        return expr
    held = fusion.held[source.name]
    flat = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(out)], held)
    flat.domain().user = out.domain().user
    fusion.remove(expr)
    made = ReshapeOp([cast(fusion, source, held)], [flat], **expr.attributes)
    fusion.register(made)
    fusion.register(PointwiseOp([flat], [out], op="cast", compute=held, dtype=out.dtype()))
    return made


def _write_dense(fusion: Fusion, expr: ReshapeOp, alone: set[int]) -> None:
    """Put a copy before a reshape that stays, if its input is not in memory in row-major order with each element once, or is written by the call.

    The reshape's output is the same memory as its input. If an output is written into that input, a reader of the reshape would see the new values.
    alone: axes that the reshape does not change; an expanded one stays expanded on both sides.
    """
    source = expr.tensor_inputs[0]
    axes, domain = logical_axes(source), source.domain()
    repeated = [a.expanded_extent is not None and dim not in alone for dim, a in enumerate(axes)]
    fusion.forget_reuse(source)
    is_written = source in fusion.aliases.values()
    if not any(repeated) and domain.allocation is None and not is_written and not (source.is_fusion_input and False in domain.contiguity):
        return
    own = [fusion.new_axis(a.logical_extent) if repeat else fusion.copy_axis(a) for a, repeat in zip(axes, repeated)]
    dense = fusion.new_tensor(own, source.dtype())
    dense.domain().user = domain.user
    fusion.register(LoadStoreOp([source], [dense]))
    fusion.replace_input(expr, source, dense)


Before = dict[TensorView, list[IterDomain]]


def _unchanged(factoring: _Factoring, expr: Expr, before: Before) -> None:
    """An op that is unchanged by more axes."""


def _pointwise(factoring: _Factoring, expr: Expr, before: Before) -> None:
    for source in dict.fromkeys(expr.tensor_inputs):
        factoring.widen(expr, source, factoring.counts[expr.tensor_outputs[0]])


def _reduction(factoring: _Factoring, expr: ReductionOp, before: Before) -> None:
    """Operands after the first may have broadcast axes where the first has real ones."""
    for source in dict.fromkeys(expr.tensor_inputs[1:]):
        factoring.widen(expr, source, factoring.counts[expr.tensor_inputs[0]])


def _flags(factoring: _Factoring, counts: list[int], flags: tuple[bool, ...]) -> tuple[bool, ...]:
    return tuple(flag for flag, count in zip(flags, counts) for _ in range(count))


def _broadcast(factoring: _Factoring, expr: Expr, before: Before) -> None:
    expr.attributes["flags"] = _flags(factoring, factoring.counts[expr.tensor_outputs[0]], expr.attributes["flags"])


def _squeeze(factoring: _Factoring, expr: Expr, before: Before) -> None:
    expr.attributes["flags"] = _flags(factoring, factoring.counts[expr.tensor_inputs[0]], expr.attributes["flags"])


def _lookup(factoring: _Factoring, expr: LookupOp, before: Before) -> None:
    out, source = expr.tensor_outputs[0], expr.source
    for index in dict.fromkeys(expr.read_by_loops):
        factoring.widen(expr, index, factoring.counts[out])
    places: list[Position] = []
    for dim, position in enumerate(expr.positions):
        if not isinstance(position, Along):
            places.append(position)
            continue
        first = factoring.place(out, position.axis)
        parts = factoring.split(before[source][dim])
        inner = product(a.logical_extent for a in parts[1:])
        offset = floordiv(position.offset, inner) if position.offset is not ZERO and len(parts) > 1 else position.offset
        if len(parts) > factoring.counts[out][position.axis]:  # a slice as long as the product of the inner parts
            places += [Fixed(offset), *(Along(first + k) for k in range(len(parts) - 1))]
        else:
            places += [Along(first, offset), *(Along(first + k) for k in range(1, len(parts)))]
    expr.attributes["positions"] = tuple(places)


def _roll(factoring: _Factoring, expr: RollOp, before: Before) -> None:
    """The parts of an axis are one index."""
    out, counts = expr.tensor_outputs[0], factoring.counts[expr.tensor_outputs[0]]
    parts = [[factoring.place(out, a) + k for a in roll.axes for k in range(counts[a])] for roll in expr.rolls]
    expr.attributes["rolls"] = tuple(Roll(tuple(axes), roll.offset) for axes, roll in zip(parts, expr.rolls))


def _cat(factoring: _Factoring, expr: CatOp, before: Before) -> None:
    expr.attributes["dim"] = factoring.place(expr.tensor_outputs[0], expr.attributes["dim"])
    for source in dict.fromkeys(expr.tensor_inputs):
        factoring.widen(expr, source, [max(a, b) for a, b in zip(factoring.counts[source], factoring.counts[expr.tensor_outputs[0]])])


def _scan(factoring: _Factoring, expr: ScanOp, before: Before) -> None:
    expr.attributes["dim"] = factoring.place(expr.tensor_outputs[0], expr.attributes["dim"])


def _scatter(factoring: _Factoring, expr: ScatterOp, before: Before) -> None:
    """A scatter of rows; the axes of others are not cut."""
    if expr.has_rows:
        base, index, source = expr.tensor_inputs
        dim, places, counts = expr.attributes["dim"], expr.attributes["places"], factoring.counts[source]
        factoring.widen(expr, index, counts)
        expr.attributes.update(dim=factoring.place(base, dim), places=sum(counts[dim : dim + places]))


_REWRITES: dict[type, Callable[[_Factoring, Any, Before], None]] = {
    PointwiseOp: _pointwise, ExpandOp: _pointwise, BroadcastOp: _broadcast, SqueezeOp: _squeeze, LookupOp: _lookup, BagOp: _lookup, CatOp: _cat, ScanOp: _scan,
    TorchOp: _unchanged, ReductionOp: _reduction, RollOp: _roll, ScatterOp: _scatter,
}  # fmt: skip
