"""Chooses how a normalization keeps its rows on chip and distributes them over threads.

The choice among rows in registers of a block or a cluster, in shared memory, and read again. Pure: facts and arch in, params out.

A row of R elements is P = R / vector_elems vectors. In registers, each thread holds `batches` of them, loaded before the first is used; the threads
of a row are inferred at launch, ceil(P / batches) rounded up to whole warps, so one kernel serves every row length that leads to the same batches.
For rows in shared memory or read again, the loop over the row has a run-time count and the block is static: one kernel for every length.

Loops, outermost first:
    register, 2-D   rows: [BIDx, TIDy = rows_per_block]          row: [batches (static), TIDx (inferred or bdimx), vector_elems]
    register, 3-D   rows: as above     outer reduced run: [outer_batches (static), TIDz]     inner run: [batches, TIDx, vector_elems]
    shared, reread  rows: [BIDx]                                 row: [serial (run-time), unroll, TIDx = bdimx, vector_elems]
Candidates: `register_rows.py`, `early_weights.py`, `channel_rows.py`, `copied_rows.py`, `streamed_rows.py`. Read first: `choose`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..arch import Arch
from ..errors import InternalError
from .channel_rows import ChannelRows
from .copied_rows import CopiedRows
from .facts import PersistentFacts
from .persistent_params import Candidate, PersistentParams
from .streamed_rows import StreamedRows
from .arithmetic import Trace, best_first

IN_REGISTERS = "score: lanes that hold data, less the losses measured for other batches, few warps and recomputed exponentials"
IN_RUNS = "score: bytes in flight, lanes that hold data and rounds of blocks, less the losses measured for clusters and tight registers"
STREAMED = "score: predicted fraction of the memory roof"
FEWER_THREADS = "fewer threads per block"
AT_ONCE = "all rows are in work at once: as few vectors per thread and as many registers as that allows"


def choose(facts: PersistentFacts, arch: Arch) -> PersistentParams:
    """Return the params of a normalization. All facts give valid params: rows that are too long to be kept are read again."""
    return choose_with_trace(facts, arch)[0]


def choose_with_trace(facts: PersistentFacts, arch: Arch) -> tuple[PersistentParams, Trace]:
    """Return the params and why, best candidate first: channels in shared memory, then for long rows registers of a cluster, otherwise registers of a block,
    otherwise shared memory or rows read again. Errors: InternalError if no threads hold a row, see `is_held`."""
    ranked, criterion, note = _candidates(facts, arch)
    if not ranked:
        raise InternalError(f"no block of threads holds {facts}")
    chosen = ranked[0].params
    return chosen, Trace("persistent", facts, (criterion, FEWER_THREADS), ranked[:24], chosen, (note,) if note else ())


def is_held(facts: PersistentFacts, arch: Arch) -> bool:
    """Tell whether some block of threads can hold rows. None can if threads that share a group of neighbours, which a part of a row has whole, are too many."""
    return bool(_candidates(facts, arch)[0])


def _candidates(facts: PersistentFacts, arch: Arch) -> tuple[tuple[Candidate, ...], str, str]:
    """Return the candidates of the first kind that there is, best first, the criterion, and a note."""
    rows = ChannelRows(facts, arch)
    criterion, note = IN_REGISTERS, ""
    in_runs, copied = _ranked(rows.channel_candidates()), _ranked(CopiedRows(facts, arch).copied_candidates())
    if in_runs and facts.late_input_bits:
        copied = ()  # nothing hides that the last pass waits for an input (docs/constants.md, copied_rows.py)
    ranked = copied or in_runs
    at_once = rows.at_once()
    if copied:
        criterion, note = STREAMED, "the row lies in several runs, which cp.async brings into shared memory"
    elif ranked:
        criterion, note = IN_RUNS, "the row lies in several runs"
    elif at_once is not None:
        ranked, note = (at_once,), AT_ONCE
    elif facts.reduction_elems * facts.max_dtype_bits > rows.one_block_bytes * 8:
        ranked = _ranked((*rows.early_candidates(), *rows.cluster_candidates()))
        note = f"a row of more than {rows.one_block_bytes} bytes is spread over a cluster"
    if not ranked:
        ranked, note = _ranked((*rows.early_candidates(), *rows.candidates())), ""
    if not ranked and rows.is_phased:
        return _candidates(dataclasses.replace(facts, phased_limit_elems=1), arch)
    if not ranked:
        streamed = StreamedRows(facts, arch)
        ranked = _ranked((*streamed.shared_candidates(), *streamed.reread_candidates()))
        criterion, note = STREAMED, "registers cannot hold a row"
    return ranked, criterion, note


def every_candidate(facts: PersistentFacts, arch: Arch) -> tuple[Candidate, ...]:
    """Return the candidates that `choose_with_trace` ranks, then those that it does not consider for these facts, each kind best first. For tuning."""
    rows = ChannelRows(facts, arch)
    streamed = StreamedRows(dataclasses.replace(facts, phased_limit_elems=1) if rows.is_phased else facts, arch)
    made = (
        rows.channel_candidates(), (*rows.early_candidates(), *rows.cluster_candidates()), rows.candidates(), streamed.shared_candidates(),
        streamed.reread_candidates(),
    )  # fmt: skip
    return (*choose_with_trace(facts, arch)[1].candidates, *(candidate for kind in made for candidate in _ranked(kind)))


def are_at_once(trace: Trace) -> bool:
    """True if the candidate was chosen because the rows are so few that all are resident at once."""
    return AT_ONCE in trace.notes


def _ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return best_first(candidates, key=lambda candidate: candidate.key)
