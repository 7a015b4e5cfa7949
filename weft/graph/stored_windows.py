"""Windows of rows whose sums go on into a reduction: what is computed from them is stored first, where neighbours share what they look up.

A thread of a pointwise kernel has rows next to each other, which have most rows of their windows in common (`weft.analysis.lookup_work.row_sharing`). The loops
of a reduction run along what it folds, so each element looks up all of its window. Owns the comparison, and which tensor is stored: the first one from which
alone all that needs the windows is computed. Read first: `store_windows_before_reductions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..analysis.plain_copies import is_plain_copy
from ..expr import ZERO
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp
from ..ir.values import Expr, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorView, WelfordOp
from ..ops.build import logical_axes
from .order_of_memory import innermost
from .repeated_values import ACCESS_INSTRUCTIONS
from .window_places import NEIGHBOURS, WindowPlaces, places_of_lookups, stored_instructions


def store_windows_before_reductions(fusion: Fusion) -> None:
    """Store, in place, what reductions need of windows of many rows, if that takes less time than that each element looks up its window by itself.

    Before: lookups read tensors in memory.   After: tensors keep their names; one that is stored is a copy that ends a segment.
    """
    exprs = fusion.tensor_exprs()
    singles = {e.source for e in exprs if type(e) is LookupOp and not _is_in_vectors(e)}
    windows = {source: places for source, places in places_of_lookups(fusion).items() if source not in singles and places.is_of_many_rows()}
    if not windows or not any(isinstance(e, (ReductionOp, WelfordOp)) for e in exprs):
        return
    readers: dict[TensorView, list[Expr]] = {}
    for expr in exprs:
        for tensor in dict.fromkeys(expr.tensor_inputs):
            readers.setdefault(tensor, []).append(expr)
    for flow in _flows(exprs, windows):
        stored = flow.waist(exprs, readers)
        if stored is not None and flow.lost_instructions(windows) > stored_instructions(stored):
            store(fusion, stored)


def _is_in_vectors(lookup: LookupOp) -> bool:
    """True for a lookup of whole vectors of rows, without branches: of those alone rows of a thread share what they load."""
    source, out = logical_axes(lookup.source), logical_axes(lookup.tensor_outputs[0])
    last = innermost(source)
    if lookup.is_masked or last is None or lookup.source.domain().allocation is not None:
        return False
    extent, place = source[last].sym, lookup.positions[last]
    is_whole = isinstance(place, Along) and place.axis == len(out) - 1 and place.offset is ZERO and out[-1].sym is extent
    return is_whole and extent.is_const and int(extent.value) % NEIGHBOURS == 0  # type: ignore[arg-type]


class _Flow:
    """Results of windows, and all that is computed from them element by element, in the order of the definition; and the sources of the windows."""

    def __init__(self, parts: Sequence[_Flow], result: TensorView) -> None:
        self.derived: dict[TensorView, None] = {tensor: None for part in parts for tensor in part.derived} | {result: None}
        self.sources: set[TensorView] = {source for part in parts for source in part.sources}

    def lost_instructions(self, windows: Mapping[TensorView, WindowPlaces]) -> float:
        """Return the instructions per element that neighbouring rows would share."""
        return ACCESS_INSTRUCTIONS * sum(len(windows[source]) - windows[source].times() for source in self.sources)

    def waist(self, exprs: Sequence[Expr], readers: Mapping[TensorView, Sequence[Expr]]) -> TensorView | None:
        """Return the first tensor from which alone all else is computed, which a reduction folds; None if there is none."""
        if not any(isinstance(use, (ReductionOp, WelfordOp)) for tensor in self.derived for use in readers.get(tensor, ())):
            return None
        missing = {e.tensor_outputs[0] for e in exprs if isinstance(e, LookupOp) and e.tensor_outputs[0] in self.derived}
        left: dict[TensorView, int] = {}  # readers that do not come before
        for expr in exprs:
            out = expr.tensor_outputs[0]
            for tensor in dict.fromkeys(expr.tensor_inputs):
                if tensor in left:
                    left[tensor] -= 1
            if out in self.derived:
                missing.discard(out)
                left[out] = len(readers.get(out, ())) + out.is_fusion_output
                if not missing and [tensor for tensor, count in left.items() if count] == [out]:
                    return out
        return None


def _flows(exprs: Sequence[Expr], windows: Mapping[TensorView, WindowPlaces]) -> list[_Flow]:
    """Return what is computed from windows, those together that meet in a pointwise op."""
    of: dict[TensorView, _Flow] = {}
    for expr in exprs:
        out = expr.tensor_outputs[0]
        if isinstance(expr, LookupOp) and expr.source in windows:
            of[out] = _Flow((), out)
            of[out].sources.add(expr.source)
        elif isinstance(expr, (PointwiseOp, SqueezeOp)) or is_plain_copy(expr):
            met = list(dict.fromkeys(of[t] for t in expr.tensor_inputs if t in of))
            if met:
                joined = _Flow(met, out) if len(met) > 1 else met[0]
                joined.derived[out] = None
                of.update((tensor, joined) for tensor in (joined.derived if len(met) > 1 else (out,)))
    return list(dict.fromkeys(of.values()))


def store(fusion: Fusion, tensor: TensorView) -> None:
    """Let a tensor be a copy that ends a segment of what it was."""
    made_by = tensor.definition()
    assert made_by is not None
    computed = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(tensor)], tensor.dtype())
    fusion.redefine(made_by, tensor, computed)
    stored = LoadStoreOp([computed], [tensor])
    stored.attributes["op"] = "segment_set"
    fusion.register(stored)


__all__ = ["store", "store_windows_before_reductions"]
