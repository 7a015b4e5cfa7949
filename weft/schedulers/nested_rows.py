"""Rows whose innermost runs are also reduced on their own: sums per channel beside sums per group, in the kernel that keeps the group on chip.

A thread keeps a sum for each run that it has a part of. These are folded behind the last pass, all at once: over the threads of a run and, where the blocks of
a cluster share each run, over the blocks. Owns which params can do this, which of them are chosen, and whether one kernel is worth it. Pure.
Read first: `choose_nested`, `why_not_worth`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..analysis.op_cost import LAUNCH_BYTES
from ..arch import Arch
from .accesses import with_accesses
from .arithmetic import Trace, best_first
from .base import Alignments, Decline, Sizes
from .channel_rows import CLUSTER_LOSS, ChannelRows
from .facts import PersistentFacts
from .persistent_analysis import PersistentAnalysis
from .persistent_params import Candidate, PersistentParams, RowsOf
from .row_model import predicted_registers

PREDICTED = "score: predicted fraction of the memory roof, less the losses measured for clusters"
FEWER_THREADS = "fewer threads per block"


def nested_candidates(facts: PersistentFacts, arch: Arch) -> tuple[Candidate, ...]:
    """Return the candidates for rows in registers with a thread's elements in runs, best first. Without those that combine mean and squares, which are not
    plain sums."""
    found = (c for c in ChannelRows(facts, arch).channel_candidates() if not c.params.fewer_passes)
    scored = (dataclasses.replace(c, score=predicted_registers(c, facts, arch) - CLUSTER_LOSS[c.params.cluster_blocks]) for c in found)
    return best_first(scored, key=lambda c: c.key)


def choose_nested(analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[PersistentParams, str]:
    """Return params and a trace. The choice is made for aligned tensors; for others threads have the same elements in narrower vectors."""
    facts = analysis.facts(sizes, {}, arch.max_access_bits)
    ranked = nested_candidates(facts, arch)
    chosen = ranked[0].params
    trace = Trace("nested", facts, (PREDICTED, FEWER_THREADS), ranked[:24], chosen, ("parts of the row are folded alone",))
    return narrowed(chosen, analysis, sizes, alignment_bits, arch), str(trace)


def narrowed(params: PersistentParams, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> PersistentParams:
    """Return params with vectors as wide as the tensors' addresses allow."""
    facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
    vector = min(params.vector_elems, RowsOf(facts, arch).vector)
    made: PersistentParams = with_accesses(dataclasses.replace(params, vector_elems=vector, batches=params.batches * (params.vector_elems // vector)), facts)
    return made


def why_not_worth(analysis: PersistentAnalysis, sizes: Sizes, arch: Arch) -> Decline | None:
    """Return why one kernel should not compute these rows, or None. Two kernels, one of which sums the parts, read their common input twice, so they take at
    least the time of these bytes. One kernel is better if it is predicted to take less, including the partial sums: they are written, and another kernel per
    sum reads them.
    """
    facts = analysis.facts(sizes, {}, arch.max_access_bits)
    if RowsOf(facts, arch).is_wide:  # the model would choose clusters of 16 that divide each run, which it ranks too high for 16 bits; none was timed
        return Decline(f"parts of rows of {facts.max_dtype_bits}-bit elements get a kernel of their own: one kernel for both was measured only for 16 bits")
    ranked = nested_candidates(facts, arch)
    if not ranked:
        return Decline("a row whose parts are reduced on their own does not fit into registers in whole runs")
    bytes_of_rows = facts.iteration_elems * facts.reduction_elems / 8
    once, again = facts.input_bits + facts.output_bits, facts.input_bits - facts.late_input_bits
    of_parts = 2 * facts.nested_bits / facts.inner_run_elems * bytes_of_rows + (facts.nested_sums - 1) * LAUNCH_BYTES
    if once * bytes_of_rows >= ((once + again) * bytes_of_rows - of_parts) * ranked[0].score:
        return Decline(f"reducing parts of a row together with the row is predicted to reach {ranked[0].score:.2f} of the roof: two kernels may be faster")
    return None


def nested_params(analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[Any]:
    """Return all params, best first. For tuning."""
    ranked = nested_candidates(analysis.facts(sizes, {}, arch.max_access_bits), arch)
    return [narrowed(c.params, analysis, sizes, alignment_bits, arch) for c in ranked]
