"""The width of rows whose lookups no vector serves, such as windows that begin at every sample: with vectors for the other inputs, the lanes of a warp look up
a vector apart, and each of these loads waits for the banks of L1 as often as a vector has elements.

Memory hides that where each element is read once. Where few bytes are looked up again and again, as by all lags of one signal, L1 is what takes the time, and
narrower vectors are better. Owns the facts and the decision. Read first: `with_best_width`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..analysis.lookup_work import LookupWork
from ..arch import SUB_PARTITIONS, WARP_THREADS, Arch
from .arithmetic import ceil_div, vectors_along_rows
from .facts import ReductionFacts
from .limits import NEAR


def works_of_widths(most_elems: int, work: Callable[[int], LookupWork]) -> tuple[LookupWork, ...]:
    """Return the work of a thread with 1, 2, 4, ... neighbours, up to `most_elems` of them; none where vectors have one element anyway."""
    return tuple(work(1 << n) for n in range(most_elems.bit_length())) if most_elems > 1 else ()


def with_best_width(facts: ReductionFacts, arch: Arch) -> ReductionFacts:
    """Return facts of rows whose threads have fewer neighbours, if L1 needs more time for lookups a vector apart than memory for what all of them read."""
    _, vector = vectors_along_rows(facts)
    works = {1 << n: work for n, work in enumerate(facts.lookup_works) if 1 << n <= vector}
    if facts.window is not None or vector not in works or not facts.total_elems:
        return facts
    clocks = {elems: _clocks_per_elem(facts, elems, work) for elems, work in works.items()}
    memory = facts.footprint_bits / 8 / facts.total_elems / arch.share_bytes_per_ns * arch.clocks_per_ns
    best = min(clocks, key=lambda elems: clocks[elems])
    if clocks[vector] <= memory or clocks[best] > (1 - NEAR) * clocks[vector]:
        return facts
    return replace(facts, window_elems=best, window=works[best], input_bits=ceil_div(facts.footprint_bits, facts.total_elems))


def _clocks_per_elem(facts: ReductionFacts, elems: int, work: LookupWork) -> float:
    """Return the clocks of a multiprocessor for an element of a row: of L1, which gives a warp a line in each, or of its schedulers."""
    others = facts.vectorizable_inputs
    from_l1 = work.bank_clocks + others * max(1.0, elems * facts.max_dtype_bits / 32)
    issued = (work.operations + work.loads + others) / SUB_PARTITIONS
    return max(from_l1, issued) / (WARP_THREADS * elems)


__all__ = ["with_best_width", "works_of_widths"]
