"""Params of a reduction whose kernels spill: a thread has fewer elements, or a block fewer threads, so that each element has more registers.

Read first: `other_reduction`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..arch import Arch
from .accesses import with_accesses
from .cost.parts import missing_registers
from .facts import ReductionFacts
from .inner_outer_params import InnerOuterParams
from .late_lookups import late
from .reduction_heuristic import ReductionParams, candidates

Params = ReductionParams | InnerOuterParams


def other_reduction(facts: ReductionFacts, arch: Arch, rejected: Mapping[Params, int]) -> ReductionParams | None:
    """Return the best params with as many registers per element as the rejected ones lacked, else those with most; None if none has more than these.
    rejected: see `Scheduler.choose_other`."""
    needed = max((_registers(params, arch) + missing_registers(spilled)) / _elems(params) for params, spilled in rejected.items())
    most = max((_registers(params, arch) / _elems(params) for params, spilled in rejected.items() if spilled), default=0.0)
    known = {replace(params, kept=()) if isinstance(params, ReductionParams) else params for params in rejected}
    found = [params for params in _narrower(facts, arch) if params not in known and _registers(params, arch) / _elems(params) > most]
    fitting = (params for params in found if _registers(params, arch) / _elems(params) >= needed)
    return next(fitting, max(found, key=lambda params: _registers(params, arch) / _elems(params), default=None))


def _narrower(facts: ReductionFacts, arch: Arch) -> Iterator[ReductionParams]:
    """Yield params, those with the widest vectors first, and best first."""
    most = max(facts.vector_limit_elems, facts.phased_limit_elems)
    fewest = max(facts.min_vector_elems, facts.block_elems)
    while most >= fewest:
        narrow = replace(facts, vector_limit_elems=min(most, facts.vector_limit_elems), phased_limit_elems=min(most, facts.phased_limit_elems))
        for _, params in candidates(narrow, arch):
            yield with_accesses(late(params), narrow)
        most //= 2


def _elems(params: Params) -> int:
    """Return how many elements a thread has at once."""
    if isinstance(params, InnerOuterParams):
        return params.vector_elems * params.batches * params.row_unroll
    return params.vector_elems * params.unroll * params.results


def _registers(params: Params, arch: Arch) -> int:
    """Return how many registers a thread can have."""
    if isinstance(params, InnerOuterParams):
        return params.max_registers
    return arch.registers_per_thread(params.threads_per_block)


__all__ = ["other_reduction"]
