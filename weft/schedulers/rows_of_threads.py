"""Normalizations of rows of a few elements that share most of what is computed: a thread has a row, in registers, and exchanges nothing.

    rows: [BIDx, TIDy = rows_per_block]     row: [batches, TIDx = 1, vector_elems]

Otherwise an element is in a lane, and four lanes compute for themselves what a quaternion needs once. The loops are those of other rows in registers
(`inner_persistent.py`). Owns when a thread has a row. Read first: `row_of_a_thread`.
"""

from __future__ import annotations

from dataclasses import replace

from ..analysis.whole_rows import RowWork
from ..arch import Arch
from .arithmetic import next_power_of_two
from .base import Sizes
from .cost.passing import passing_ns
from .cost.whole_rows import WholeRowFacts, work_of_whole_rows
from .facts import PersistentFacts
from .persistent_analysis import PersistentAnalysis
from .persistent_params import PersistentParams
from .pointwise_heuristic import BLOCK_THREADS
from .short_rows import is_of_a_thread, shared_row
from .whole_rows import is_faster


def row_of_a_thread(
    params: PersistentParams, analysis: PersistentAnalysis, facts: PersistentFacts, sizes: Sizes, arch: Arch
) -> PersistentParams | None:  # fmt: skip
    """Return params with which a thread has a row, if that is faster than `params`, with which lanes share it; None for rows that are longer, of unknown
    length, or covered by one vector, and for fewer than threads that fill the chip."""
    is_usual = params.storage == "register" and params.kind == "2d" and not (params.is_phased or facts.still_axes)
    if not is_usual or not is_of_a_thread(analysis, facts, arch) or facts.vector_limit_elems >= facts.reduction_elems:
        return None
    vector = min(facts.vector_limit_elems, facts.reduction_elems & -facts.reduction_elems)
    found = shared_row(analysis, facts, sizes, vector, analysis.outputs)
    if not is_faster(found, _time_ns(found, arch), _time_ns(by_lanes(found, facts), arch)):
        return None
    return replace(
        params, vector_elems=vector, batches=facts.reduction_elems // vector, bdimx=1, pad_to_warp=False, rows_per_block=BLOCK_THREADS[0], row_unroll=1,
        is_warp_only=True, fill="whole", max_registers=arch.max_registers_per_thread,
    )  # fmt: skip


def by_lanes(whole: WholeRowFacts, facts: PersistentFacts) -> WholeRowFacts:
    """Return what a lane does for its element, at least, as facts of rows of one element."""
    work, lanes = whole.work, next_power_of_two(whole.elems)
    alone = RowWork(facts.instructions, facts.mufu, work.divisions, work.addresses, work.addresses, work.addresses, work.words / lanes, work.moved_bytes)
    return WholeRowFacts(whole.rows * lanes, 1, alone)


def _time_ns(facts: WholeRowFacts, arch: Arch) -> float:
    return float(passing_ns(work_of_whole_rows(1, BLOCK_THREADS[0], facts, arch), arch))


__all__ = ["row_of_a_thread"]
