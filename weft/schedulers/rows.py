"""The loops of a reference tensor: axes in memory order, runs merged, rows split into vectors, and what peels them.

Owns functions on the loop axes of one tensor, which templates of several schedulers share. Read first: `canonical_rows`, `split_last_run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.lookups import in_memory
from ..analysis.loop_axes import LoopAxes
from ..analysis.reduction_shape import ReductionShape
from ..analysis.vectorization import VectorLimits
from ..expr import Sym, variables
from ..ir.enums import ParallelType
from ..ir.values import IterDomain, TensorView, no_reductions
from ..schedule.peel import Peel, Phase
from ..schedule.primitives import merge, reorder, split


@dataclass
class Rows:
    """The canonical loops of a reduction's output, as axes: [rows | outer | row | single | vector].

    rows: the axes that are not reduced, merged; None if there are none. outer: the outer reduced runs, merged, if kept separate. row: the (inner) reduced run
    without its vector, merged with the outer ones if these are not kept separate. single: axes of one iteration (expanded ones, too) if there are no rows to
    merge them with. A tensor without them, such as an expanded input after its squeeze, shares only the loops outside of them.
    """

    rows: IterDomain | None
    outer: IterDomain | None
    row: IterDomain
    single: list[IterDomain]
    vector: IterDomain


def canonical_rows(
    tensor: TensorView, shape: ReductionShape, axes: LoopAxes, vector_elems: int, *, keep_outer: bool, is_phased: bool = False, inner_axes: int = 0
) -> Rows:  # fmt: skip
    """Transform the loops of a reduction over the innermost run to the canonical order.

    Before: loops are the logical axes.   After: [rows?, outer?, row, single, vector], in memory order, each run merged.
    is_phased: vectors are aligned in memory wherever rows begin. inner_axes: number of innermost loops in the inner run; 0: all of the last run.
    """
    others, row, vector = split_last_run(tensor, shape, axes, vector_elems, inner_axes=inner_axes, is_phased=is_phased)
    kept, reduced = kept_and_reduced(others)
    kept, single = ([], kept) if all(a.is_broadcast() for a in kept) else (kept, [])
    arrange_axes(tensor, [*kept, *reduced, row, *single, vector])
    rows = merge_axes_at(tensor, 0, len(kept))
    at = 1 if kept else 0
    outer = merge_axes_at(tensor, at, len(reduced))
    if outer is not None and not keep_outer:
        merge(tensor, at, at + 1)
        outer, row = None, tensor.axis(at)
    return Rows(rows, outer, row, single, vector)


def split_last_run(
    tensor: TensorView, shape: ReductionShape, axes: LoopAxes, vector_elems: int, *, inner_axes: int = 0, is_phased: bool = False, overlaps: bool = False
) -> tuple[list[IterDomain], IterDomain, IterDomain]:  # fmt: skip
    """Bring the loops into the order of `shape`, merge the last run, or its `inner_axes` innermost loops, and split it into vectors; return the loops outside
    of it, its loop over vectors, and the vector.
    """
    arrange(tensor, class_order(tensor, shape, axes))
    run = inner_axes or len(shape.runs[-1].classes)
    merge_run(tensor, len(tensor.get_loop_domain()) - run, run)
    split(tensor, -1, vector_elems, is_phased=is_phased, overlaps=overlaps)
    *others, line, vector = tensor.get_loop_domain()
    return others, line, vector


def merge_rows_and_row(tensor: TensorView, shape: ReductionShape, axes: LoopAxes) -> None:
    """Bring the loops of a reduction into the form [rows, row], each merged into one."""
    arrange(tensor, class_order(tensor, shape, axes))
    kept, reduced = kept_and_reduced(tensor.get_loop_domain())
    arrange_axes(tensor, [*kept, *reduced])
    merge_axes_at(tensor, len(kept), len(reduced))
    merge_axes_at(tensor, 0, len(kept))


def kept_and_reduced(loops: Iterable[IterDomain]) -> tuple[list[IterDomain], list[IterDomain]]:
    """Divide loops into those that a reduction keeps and those that it reduces, each in their order."""
    loops = list(loops)
    return no_reductions(loops), [a for a in loops if a.is_reduction()]


def is_constant_along(loops: Sequence[IterDomain]) -> bool:
    """True if these loops of a tensor neither have several of its elements nor are reduced."""
    return not any(a.is_iteration() or a.is_reduction() for a in loops)


def peel_of(shape: ReductionShape, axes: LoopAxes, fill: str, batches: int, phase: Phase | None = None) -> Peel | None:
    """Return how rows kept in `batches`, with `fill` as in the params, are peeled; None if there is nothing to peel. Bounds also stay if a result depends only
    on the outer runs of a row: its loops are split into batches like the row, but are not full when the row is.
    """
    if fill == "partial" or any(t.is_fusion_output and lies_in_outer_runs(t, shape, axes) for t in axes.tensors):
        return None if phase is None else Peel(phase=phase)
    return Peel.filled(row_sizes(shape), batches, fill, phase=phase)


def row_sizes(shape: ReductionShape) -> frozenset[Sym]:
    """Return the variables of a row's length that rows do not share."""
    logical = shape.reference.get_logical_domain()
    row, others = ({v for a in logical if a.is_reduction() is kind for v in variables(a.sym)} for kind in (True, False))
    return frozenset(row - others)


def lies_in_outer_runs(tensor: TensorView, shape: ReductionShape, axes: LoopAxes) -> bool:
    """True when rows end in memory, and `tensor` varies over reduced axes, but has none of the innermost run, which is cut into vectors."""
    return shape.is_inner and bool(axes.stored(tensor) & shape.reduced) and not axes.concrete(tensor) & set(shape.runs[-1].classes)


def phase_of_rows(rows: Rows, params: Any, limits: VectorLimits, blocks: ParallelType | None) -> Phase:
    """Return what the phase of a row depends on. Before: the row is not split among threads. blocks: the blocks that share a row."""
    return phase_of(rows.rows, rows.row.definition().inputs[0], params, limits, blocks)  # type: ignore[union-attr, arg-type]


def phase_of(rows: IterDomain | None, row: IterDomain, params: Any, limits: VectorLimits, blocks: ParallelType | None) -> Phase:
    """Return what the phase of a row depends on. params: of any scheduler that has `is_phased` and `is_tailed`. blocks: the blocks that share a row."""
    aligned = [in_memory(t) for t in limits.vectorizable] if params.is_tailed else limits.phased
    return Phase(rows, row.sym, params.vector_elems, frozenset(t.name for t in aligned), blocks, params.is_tailed)


def names_in_vectors(limits: VectorLimits, position: int, params: Any) -> list[int]:
    """Return the names of the inputs and outputs that are accessed in vectors. With a phase, these are the whole rows, and outputs with aligned vectors.
    position: number of loops outside of a row. params: of any scheduler that has `is_phased` and `is_tailed`.
    """
    return [t.name for t in limits.in_vectors(position, params.is_phased and not params.is_tailed)]


def class_order(tensor: TensorView, shape: ReductionShape, axes: LoopAxes) -> list[int]:
    """Positions of the loop axes of `tensor` in the order of `shape`; axes of one iteration first."""
    return places_in_order(shape.reference.get_logical_domain(), shape.order, axes)


def places_in_order(domain: Sequence[IterDomain], order: Sequence[int], axes: LoopAxes) -> list[int]:
    """Positions of the axes of `domain` in the order of their classes; axes of one iteration first."""
    classes = [axes.of(a) for a in domain]
    place = {n: k for k, n in enumerate(order)}
    return sorted(range(len(classes)), key=lambda k: (-1 if classes[k] is None else place[classes[k]], k))  # type: ignore[index]


def merge_axes_at(tensor: TensorView, first: int, count: int) -> IterDomain | None:
    """Merge `count` loop axes from `first` on; return the result, None if there are none."""
    if count == 0:
        return None
    merge_run(tensor, first, count)
    return tensor.axis(first)


def merge_two_runs(tensor: TensorView, outer: int, inner: int) -> tuple[list[IterDomain], IterDomain, IterDomain]:
    """Merge the `inner` innermost loop axes, and the `outer` ones before them, at least one each; return the number of axes before both, and both."""
    first = len(tensor.get_loop_domain()) - inner
    merge_axes_at(tensor, first, inner)
    merge_axes_at(tensor, first - outer, outer)
    *left, of_outer, of_inner = tensor.get_loop_domain()
    return left, of_outer, of_inner


def split_axis(
    tensor: TensorView, axis: IterDomain, factor: int, inner_split: bool = True, multiple: int = 1, *, is_phased: bool = False
) -> tuple[IterDomain, IterDomain]:
    """Split a loop axis given as an axis; return (outer, inner)."""
    position = tensor.get_loop_domain().index(axis)
    split(tensor, position, factor, inner_split, multiple=multiple, is_phased=is_phased)
    return tensor.axis(position), tensor.axis(position + 1)


def positions(tensor: TensorView, axes: Iterable[IterDomain]) -> list[int]:
    return [tensor.get_loop_domain().index(a) for a in axes]


def arrange_axes(tensor: TensorView, axes: Sequence[IterDomain]) -> None:
    """Reorder all loop axes of `tensor` as given."""
    arrange(tensor, positions(tensor, axes))


def arrange(tensor: TensorView, order: Sequence[int]) -> None:
    """Reorder the loop axes of `tensor`: new position n holds what was at order[n]."""
    reorder(tensor, {old: new for new, old in enumerate(order)})


def merge_run(tensor: TensorView, first: int, count: int) -> None:
    """Merge `count` neighbouring loop axes from position `first` on into one."""
    for _ in range(count - 1):
        merge(tensor, first, first + 1)
