"""The analysis of a normalization, which uses the result of a reduction over the axes that it reduced: what of `PersistentFacts` does not depend on sizes.

Read first: `analyze_persistent`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..analysis.lookups import lookup_of
from ..analysis.loop_axes import LoopAxes, Obstacle
from ..analysis.persistent import PersistentBuffers
from ..analysis.reduction_shape import ReductionShape
from ..analysis.vectorization import MAX_VECTOR_BITS
from ..ir.block_ops import SWIZZLED, sample_of
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp
from ..ir.values import Expr
from .base import Alignments, Sizes
from .facts import PersistentFacts
from .limits import MOST_LOOKED_UP
from .row_analysis import LEAST_RUN_BITS, RowAnalysis, analyze_rows


class PersistentAnalysis(RowAnalysis):
    """A normalization: results of reductions are used over the reduced loops."""

    can_hold_groups = True

    def __init__(self, fusion: Fusion, axes: LoopAxes, shape: ReductionShape, buffers: PersistentBuffers, nested: tuple[Expr, ...] = ()) -> None:
        super().__init__(fusion, axes, shape, buffers, nested)
        self.scans = [e for e in fusion.tensor_exprs() if isinstance(e, ScanOp)]
        self.keeps_scans = any(buffers.first_pass.get(t, 0) < buffers.passes - 1 for e in self.scans for t in e.tensor_outputs)
        """A later pass reads what follows from running folds."""
        if self.keeps_scans:
            self.buffers = replace(buffers, projected=None, projection_obstacle="running folds are not computed again")
        self.still_axes = self.count_still_axes()
        self.folded_passes = buffers.passes
        """Passes if dependent reductions are combined, as for rows and columns that each pass reads again; the scheduler counts them."""
        self.can_look_up_again = True
        """False if passes with separate lookups would have no common tensor that joins their loops, see `loops_stay_joined`."""

    def facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int = MAX_VECTOR_BITS) -> PersistentFacts:
        """Return the facts at these sizes; the last reduced run is split at the loops that an input lacks (`still_axes`), unless vectors would be too
        narrow."""
        facts = self._facts(env, alignment_bits, max_access_bits)
        if not self.still_axes:
            return facts
        extents, order = self.axes.extents_elems(env), self.shape.order
        limit = self.limits.limit_elems(len(order) - self.still_axes, env, alignment_bits, facts.vector_bits)
        if not self.nested and limit < facts.vector_limit_elems and (limit * facts.max_dtype_bits < LEAST_RUN_BITS or limit < facts.min_vector_elems):
            return facts
        inner = math.prod(extents[n] for n in order[-self.still_axes :])
        is_reduced, run = facts.runs[-1]
        runs = (*facts.runs[:-1], (is_reduced, run // inner), (is_reduced, inner))
        return replace(facts, runs=runs, still_axes=self.still_axes, vector_limit_elems=limit, phased_limit_elems=1)  # a phase needs a row of one run

    def _facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int) -> PersistentFacts:
        extents = self.axes.extents_elems(env)
        return PersistentFacts(
            has_lookup=any(lookup_of(t) is not None for t in self.row_inputs),
            has_scale_tiles=any(sample.layout == SWIZZLED for t in self.outputs if (sample := sample_of(t)) is not None),
            group_operands=len(self.group_inputs),
            folded_passes=self.folded_passes,
            nested_sums=len(self.nested),
            nested_bits=sum(e.tensor_outputs[0].dtype().bits for e in self.nested),
            **self.kept_facts(extents),
            **self.shared_facts(env, alignment_bits, extents, max_access_bits),
        )


def analyze_persistent(fusion: Fusion, axes: LoopAxes | None = None) -> PersistentAnalysis | Obstacle:
    """Return the size-independent facts of a normalization, or why it is not one."""
    found = analyze_rows(fusion, axes, can_nest=True)
    if isinstance(found, Obstacle):
        return found
    if found[2].passes == 1:
        return Obstacle("no reduction's result is broadcast back over the reduced axes, so this is not a normalization")
    analysis = PersistentAnalysis(fusion, *found)
    if len(analysis.windows) >= MOST_LOOKED_UP:
        return Obstacle(f"{len(analysis.windows)} elements are looked up for each element of a row, of which a thread keeps several")
    return analysis
