"""Which way to keep a normalization's rows: in registers (or what is chosen where they are too long), by TMA a row per block, or by specialized warps.

Pure: facts and arch in, params out. Owns the choice among the ways; each way's params are chosen in `persistent_heuristic.py` and `async_rows_heuristic.py`.
Read first: `choose_rows`.
"""

from __future__ import annotations

from ..arch import Arch
from .async_rows_heuristic import AsyncRowsParams, choose_async_rows
from .facts import PersistentFacts
from .persistent_heuristic import PersistentParams, choose_with_trace

TMA_ROW_BYTES = (64 * 1024, 128 * 1024)
"""More than the first and at most the second: rows that registers would spread over a cluster. One H200, fractions of a copy, registers against "tma":
float32 24K layer norm 0.63 and 0.78, softmax 0.80 and 0.84, RMS norm 0.82 and 0.88; float32 32K 0.58 and 0.77, 0.80 and 0.88, 0.83 and 0.84;
bf16 64K layer norm 0.71 and 0.72, but softmax 0.73 and 0.63, RMS norm 0.87 and 0.82; of 160 KiB, layer norm 0.57 and 0.55."""


def is_best_by_tma(facts: PersistentFacts, arch: Arch) -> bool:
    """True where a block that loads its whole row by TMA was measured to be faster than a cluster with the row in its registers."""
    row_bytes = facts.reduction_elems * facts.max_dtype_bits // 8
    is_wide = facts.max_dtype_bits >= 32 or facts.reductions > 1 and not facts.has_exp
    is_alone = facts.vectorizable_inputs == 1 and not facts.has_rng
    return is_alone and is_wide and TMA_ROW_BYTES[0] < row_bytes <= TMA_ROW_BYTES[1] and facts.iteration_elems >= arch.sm_count


def choose_rows(facts: PersistentFacts, arch: Arch, *, is_loadable: bool, variant: str = "auto") -> tuple[PersistentParams | AsyncRowsParams, str]:
    """Return the params of a normalization and why.

    is_loadable: rows of all inputs lie contiguously. variant: the way that is asked for; where that is impossible, the params of rows in registers.
    """
    if variant == "auto" and is_loadable and is_best_by_tma(facts, arch):
        by_tma = choose_async_rows(facts, arch, "tma")
        if isinstance(by_tma, AsyncRowsParams):
            return by_tma, f"rows of one input that registers would spread over a cluster: {by_tma}"
    found = choose_async_rows(facts, arch, variant) if variant in ("tma", "specialized") else None
    if isinstance(found, AsyncRowsParams):
        return found, f"forced: {found}"
    params, trace = choose_with_trace(facts, arch)
    return params, str(trace) if found is None else f"not {variant}: {found.reason}\n{trace}"
