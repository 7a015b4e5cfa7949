"""The passes of a normalization over a row: which expression belongs to which pass, and how a later pass gets the row again.

Owns what is computed again (`Passes`) and what is kept in shared memory or read once more (`keep_elsewhere`); what is kept is found in
`analysis/persistent.py`. Read first: `Passes`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..analysis.axes import MAPS, TIE, axis_maps
from ..analysis.loop_axes import Obstacle
from ..errors import InternalError
from ..arch import CP_ASYNC_BYTES
from ..ir.enums import LoadStoreOpType, MemoryType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import Expr, FullOp, IotaOp, LoadStoreOp, ReductionOp, TensorView
from ..schedule.caching import RUNS_AHEAD, _computed_alike, cache_after
from ..schedule.one_pass_moments import fold_moments
from ..schedule.online_softmax import fold_online
from ..schedule.primitives import set_memory_type
from ..schedule.recompute import recompute_chain
from .persistent_analysis import PersistentAnalysis, analyze_persistent
from .persistent_params import PersistentParams
from .rows import lies_in_outer_runs
from .template import Template


NOT_JOINED = "each pass would compute positions of its own, and nothing would join its loops with those of other passes"


class Passes:
    """The passes over a row: which expression belongs to which pass, and what each recomputes instead of keeping."""

    def __init__(self, template: Template, analysis: Any, *, is_projected: bool) -> None:
        self.template = template
        self.again: dict[int, dict[TensorView, TensorView]] = {}  # pass -> tensor -> its recomputed copy in that pass, or itself
        buffers = analysis.buffers
        chosen = buffers.projected if is_projected and buffers.projected is not None else buffers.buffers
        self.kept_names = {b.tensor.name for b in chosen}
        self.first: dict[int, int] = {t.name: p for t, p in buffers.first_pass.items()}
        for source, cache in template.inputs:
            self.first[cache.name] = self.first.get(source.name, 0)
        for name, result in template.lookups:
            self.first.setdefault(result.name, self.first.get(name, 0))
        for local, output in template.outputs:
            self.first.setdefault(local.name, self.first.get(output.name, 0))
        axes = analysis.axes
        self.varying = {t.name for t in axes.tensors if axes.stored(t) & analysis.shape.reduced}
        self.whole_rows = {t.name for t in axes.tensors if axes.stored(t) >= analysis.shape.reduced}
        self.in_outer_runs = {t.name for t in axes.tensors if self.first.get(t.name, 0) and lies_in_outer_runs(t, analysis.shape, axes)}
        self.in_outer_runs |= {local.name for local, output in template.outputs if output.name in self.in_outer_runs}

    def of_use(self, use: Expr) -> int:
        """The pass in which an expression runs; a reduction runs as soon as its operand can be computed."""
        if isinstance(use, ReductionOp):
            return self.first.get(use.inputs[0].name, 0)
        return self.first.get(use.outputs[0].name, 0)

    def separate(self) -> list[TensorView]:
        """Make later passes recompute what is not kept; return what is kept between passes (caches of inputs, or computed tensors). The loops of recomputed
        tensors stay those of the first pass, even if they read only positions and constants.
        """
        template = self.template
        self._separate_outer_runs()
        cache_of = {source.name: cache for source, cache in template.inputs} | dict(template.lookups)
        kept: list[TensorView] = []
        for tensor in template.fusion.tensors():
            if tensor.name in self.kept_names:
                kept.append(cache_of.get(tensor.name, tensor))
        memos = self.again
        for tensor in template.fusion.tensors():
            if tensor.name not in self.varying or tensor.name in self.kept_names or tensor.is_fusion_input or tensor.is_fusion_output:
                continue
            for use in tensor.uses():
                at = self.of_use(use)
                if at > self.first.get(tensor.name, 0):
                    memo = memos.setdefault(at, {k: k for k in kept})
                    clone = recompute_chain(tensor, use, memo, whole_rows=self.whole_rows)
                    self.first[clone.name] = at
                    for made in memo.values():
                        self.first.setdefault(made.name, at)
        self._join_again()
        return kept

    def _join_again(self) -> None:
        """Tie the recomputed tensors of a later pass to the first pass if no tensor in memory joins their loops, because both are computed from positions and
        constants."""
        fusion = self.template.fusion
        if not any(isinstance(e, (LookupOp, IotaOp, FullOp)) for e in fusion.tensor_exprs()):
            return
        maps = axis_maps(fusion)
        for tensor, copy in ((t, c) for memo in self.again.values() for t, c in memo.items() if c is not t and t.uses()):
            axes = zip(tensor.get_logical_domain(), copy.get_logical_domain())
            if any(not a.is_broadcast() and maps.exact(a) is not maps.exact(b) for a, b in axes):
                tie = tensor.definition().attributes.setdefault(TIE, f"T{tensor.name}")  # type: ignore[union-attr]
                copy.definition().attributes[TIE] = tie  # type: ignore[union-attr]
        fusion.findings.pop(MAPS, None)

    def _separate_outer_runs(self) -> None:
        """Give values of a later pass that depend only on the outer runs of a row separate loads of their inputs. Their loops iterate the outer runs, those of
        the row all runs merged, so an element is in different threads.
        """
        caches = [cache for source, cache in self.template.inputs if source.name in self.varying]
        varying = self.varying | {cache.name for cache in caches}
        memos: dict[int, dict[TensorView, TensorView]] = {}
        own: dict[int, set[int]] = {}
        for tensor in self.template.fusion.tensors():
            if tensor.name not in varying or tensor.is_fusion_input or self.first.get(tensor.name, 0):
                continue
            for use in tensor.uses():
                if use.outputs[0].name in self.in_outer_runs and not isinstance(use, ReductionOp):
                    at = self.of_use(use)
                    recompute_chain(tensor, use, memos.setdefault(at, {}))
                    own.setdefault(at, set()).add(id(use))
        for at, memo in memos.items():
            for made in memo.values():
                if made.name not in self.first:
                    self.first[made.name] = at
                    own[at].add(id(made.definition()))
        for cache in caches:
            for uses in own.values():
                later = [use for use in cache.uses() if id(use) in uses]
                if later and len(later) < len(cache.uses()):
                    load_again(cache, later)

    def operands(self, kept: list[TensorView]) -> list[TensorView]:
        """Return the loads that depend on the row and are not kept, such as weights: each pass that loops over the row loads them again."""
        loads = [(source.name, cache) for source, cache in self.template.inputs] + self.template.lookups
        return [load for name, load in loads if name in self.varying and load not in kept and load.uses()]


def keep_elsewhere(
    kept: list[TensorView], passes: Passes, params: PersistentParams, in_vectors: Collection[int]
) -> tuple[list[TensorView], list[TensorView]]:  # fmt: skip
    """If rows are not kept in registers, give later passes their own copies; return (register copies, tensors in shared memory). in_vectors: names of the
    inputs that are read in vectors."""
    copies: list[TensorView] = []
    in_shared: list[TensorView] = []
    for tensor in kept:
        if params.storage == "shared":
            is_copied = params.is_copied and can_be_copied(tensor, passes, params, in_vectors)
            made = copy_into_shared(tensor, passes) if is_copied else keep_in_shared(tensor, passes)
            copies += made
            in_shared += [c.definition().tensor_inputs[0] for c in made[:1]]  # type: ignore[union-attr]
    if params.storage != "register":
        again = [*(kept if params.storage == "reread" else ()), *passes.operands(kept)]
        copies += [copy for tensor in lookups_first(again) for copy in read_again(tensor, passes)]
    return copies, in_shared


def in_fewer_passes(fusion: Fusion, analysis: PersistentAnalysis) -> PersistentAnalysis:
    """Combine dependent reductions where possible, in place; return the new analysis of `fusion`. For rows that each pass reads again. Nothing is combined
    where one pass would be left, but groups of the row are folded in the second."""
    if analysis.blocks.groups and isinstance(_in_fewer_passes(fusion), Obstacle):
        return analysis
    if not fold_online(fusion) + fold_moments(fusion):
        return analysis
    found = analyze_persistent(fusion)
    if isinstance(found, Obstacle):
        raise InternalError(f"a normalization is none any more when its reductions are folded together: {found}")
    return found


def folded_passes(fusion: Fusion, analysis: PersistentAnalysis, *, is_online: bool = True) -> int:
    """Return the number of passes if dependent reductions are combined where possible. is_online: also maxima with sums of exponentials below them."""
    found = _in_fewer_passes(fusion, is_online=is_online)
    if found is None or isinstance(found, Obstacle) and analysis.blocks.groups:
        return analysis.buffers.passes
    return 2 if isinstance(found, Obstacle) else found.buffers.passes


def _in_fewer_passes(fusion: Fusion, *, is_online: bool = True) -> PersistentAnalysis | Obstacle | None:
    """Return the analysis of a copy in which dependent reductions are combined; None if there are none."""
    clone, _ = fusion.clone()
    return analyze_persistent(clone) if (is_online and fold_online(clone)) + fold_moments(clone) else None


def loops_stay_joined(fusion: Fusion, analysis: PersistentAnalysis) -> bool:
    """True if, after each pass has its own reads, all reductions still have the same axes, and outputs have these. Values that depend on no tensor, such as
    positions, are recomputed in each pass, and then nothing may be left that shows that axes of two passes are the same.
    """
    if not any(isinstance(e, (LookupOp, IotaOp, FullOp)) for e in fusion.tensor_exprs()):
        return True
    clone, _ = fusion.clone()
    template = Template(clone)
    passes = Passes(template, analysis, is_projected=analysis.buffers.projected is not None)
    separate_reads(passes)
    maps = axis_maps(clone)
    reduced = [{maps.exact(a) for a in t.get_logical_domain() if a.is_reduction()} for t in template.reductions]
    reference = template.reduction_behind(analysis.shape.reference.name)
    of_reference = next(axes for t, axes in zip(template.reductions, reduced) if t is reference)
    return all(axes <= of_reference for axes in reduced) and _joined_outputs(clone, reference) >= _joined_outputs(fusion, analysis.shape.reference)


def _joined_outputs(fusion: Fusion, reference: TensorView) -> set[tuple[int, int]]:
    """Return which axes of which outputs are axes of `reference`."""
    maps = axis_maps(fusion)
    classes = {maps.exact(a) for a in reference.get_logical_domain()}
    axes = ((n, d, a) for n, t in enumerate(fusion.outputs()) if isinstance(t, TensorView) for d, a in enumerate(t.get_logical_domain()))
    return {(n, d) for n, d, a in axes if not a.is_broadcast() and maps.exact(a) in classes}


def separate_reads(passes: Passes) -> list[TensorView]:
    """Give each pass its own reads of the row; return the register caches and results of the later reads."""
    kept = passes.separate()
    return [copy for tensor in lookups_first([*kept, *passes.operands(kept)]) for copy in read_again(tensor, passes)]


def lookups_first(tensors: list[TensorView]) -> list[TensorView]:
    """Return tensors with lookups before the tensors that they read: a copy of a lookup has its own copy of the indices, which is then loaded again for it."""
    found = {t for t in tensors if isinstance(t.definition(), LookupOp)}
    if not found:
        return tensors
    lookups = [e.outputs[0] for e in tensors[0].fusion.tensor_exprs() if isinstance(e, LookupOp)]  # type: ignore[union-attr]
    return [*(t for t in reversed(lookups) if t in found), *(t for t in tensors if t not in found)]


def later_uses(tensor: TensorView, passes: Passes) -> dict[int, list[Expr]]:
    """Uses of `tensor` in passes after the first that reads it, by pass."""
    uses: dict[int, list[Expr]] = {}
    start = min(passes.of_use(u) for u in tensor.uses())
    for use in tensor.uses():
        if passes.of_use(use) > start:
            uses.setdefault(passes.of_use(use), []).append(use)
    return uses


def keep_in_shared(tensor: TensorView, passes: Passes) -> list[TensorView]:
    """Store `tensor` to shared memory when it is computed; later passes read it from there. Return the register copies."""
    later = later_uses(tensor, passes)
    if not later:
        return []
    every = [use for uses in later.values() for use in uses]
    stored = cache_after(tensor, cached_uses=every)
    set_memory_type(stored, MemoryType.shared)
    return [cache_after(stored, cached_uses=uses) for uses in later.values()]


def can_be_copied(tensor: TensorView, passes: Passes, params: PersistentParams, in_vectors: Collection[int]) -> bool:
    """True if cp.async can copy an input into shared memory: whole rows, whose vectors, or single elements if they are not read in vectors, it supports."""
    definition = tensor.definition()
    if not isinstance(definition, LoadStoreOp) or not definition.tensor_inputs[0].is_fusion_input:
        return False
    source = definition.tensor_inputs[0].name
    if source not in passes.whole_rows:
        return False
    lanes = params.vector_elems if source in in_vectors else 1
    return tensor.dtype().bits * lanes // 8 in CP_ASYNC_BYTES


def copy_into_shared(cache: TensorView, passes: Passes) -> list[TensorView]:
    """Load the input of `cache` into shared memory by cp.async; each pass reads it from there. Return the register copies of later passes."""
    later = later_uses(cache, passes)
    if not later:
        return []
    load: Expr = cache.definition()  # type: ignore[assignment]
    shared = cache_after(load.tensor_inputs[0], LoadStoreOpType.cp_async, cached_uses=[load])
    shared.definition().attributes[RUNS_AHEAD] = True  # type: ignore[union-attr]
    set_memory_type(shared, MemoryType.shared)
    return [load_again(cache, uses) for uses in later.values()]


def read_again(tensor: TensorView, passes: Passes) -> list[TensorView]:
    """Give each later pass its own load of `tensor` from global memory. Return the new register caches."""
    definition = tensor.definition()
    if isinstance(definition, LookupOp):
        return [look_up_again(tensor, definition, at, uses, passes) for at, uses in later_uses(tensor, passes).items()]
    if not isinstance(definition, LoadStoreOp) or not definition.tensor_inputs[0].is_fusion_input:
        return []
    return [load_again(tensor, uses) for uses in later_uses(tensor, passes).values()]


def load_again(cache: TensorView, uses: list[Expr]) -> TensorView:
    """Give `uses` a separate cache of the input of `cache`; return it."""
    load: Expr = cache.definition()  # type: ignore[assignment]
    fusion: Fusion = cache.fusion  # type: ignore[assignment]
    (source,) = load.tensor_inputs
    copy = cache_after(source, cached_uses=[load])
    fusion.replace_input(load, copy, source)
    for use in uses:
        fusion.replace_input(use, cache, copy)
    return copy


def look_up_again(result: TensorView, lookup: LookupOp, at: int, uses: list[Expr], passes: Passes) -> TensorView:
    """Give `uses`, of pass `at`, a separate lookup at the same, recomputed positions; return its result."""
    template = passes.template
    copy = _computed_alike(template.fusion, result)
    again = template.fusion.register(type(lookup)(lookup.inputs, [copy], **lookup.attributes))
    for use in uses:
        template.fusion.replace_input(use, result, copy)
    memo: dict[TensorView, TensorView] = {}
    for index in [t for t in again.read_by_loops if t.name in passes.varying]:
        recompute_chain(index, again, memo)
    for made in (copy, *memo.values()):
        passes.first.setdefault(made.name, at)
    name = next(name for name, found in template.lookups if found is result)
    template.lookups.append((name, copy))
    return copy
