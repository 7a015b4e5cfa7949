"""InnerOuterPersistent: chooses parameters by the predicted time of every candidate.

Pure: facts and arch in, params out. Every candidate that fits the chip (`inner_outer_candidates.py`) is predicted by the cost model, and the fastest is taken.
Read first: `choose_inner_outer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..arch import Arch
from .cost.model import time_ns
from .cost.parts import missing_registers
from .cost.two_sided import Kernels, needed_registers, work_of
from .inner_outer_candidates import Candidates, kernel_of
from .inner_outer_params import LOADS, InnerOuterParams
from .two_sides import TwoSidedFacts
from .limits import SHOWN


NONE_REJECTED: Mapping[InnerOuterParams, int] = MappingProxyType({})


def forms(facts: TwoSidedFacts, arch: Arch, is_loadable: bool, any_cluster: bool = False) -> list[Candidates]:
    """Return the candidates of every form: rows of one phase or any, a maximum and a sum of exponentials as two reductions or one. any_cluster: see
    `Candidates`. One only if threads have vectors: element by element each exponential waits for the one before (docs/two_sides.md, "A maximum and the
    sum of exponentials below it").
    """
    out = []
    for is_online in (False, True)[: 1 + (facts.online is not None)]:
        more = {"is_online": is_online, "any_cluster": any_cluster}
        phased = Candidates(facts, arch, is_loadable, **more)
        out += [phased, Candidates(facts, arch, is_loadable, may_be_phased=False, **more)] if phased.is_phased else [phased]
    return [made for made in out if made.vector > 1 or not made.is_online]


def have_registers(table: Kernels, candidates: Candidates, rejected: Mapping[InnerOuterParams, int]) -> Any:
    """Return which kernels of a table have enough registers if the estimate is too low by as much as it was for those that spilled. rejected: see
    `choose_inner_outer`.
    """
    rows, missing = candidates.facts_of_rows, 0.0
    for params, count in rejected.items():
        if count and params.is_online == candidates.is_online:
            missing = max(missing, params.max_registers + missing_registers(count) - float(needed_registers(kernel_of(params), rows)))
    return needed_registers(table, rows) + missing <= table.max_registers if missing else np.ones(len(table.batches), dtype=bool)


def choose_inner_outer(
    facts: TwoSidedFacts, arch: Arch, is_loadable: bool = True, rejected: Mapping[InnerOuterParams, int] = NONE_REJECTED,
    loads: tuple[str, ...] = LOADS,
) -> tuple[InnerOuterParams, str]:  # fmt: skip
    """Return params, and the trace of the comparison. is_loadable: bulk copies can load the rows of all inputs. rejected: params that must not be chosen
    -> bytes per thread that their kernels spilled, or 0; kernels that have too few registers, judged by these, come last. loads: allowed ways to load rows.
    """
    for any_cluster in (False, True):
        tables = [(made, made.table()) for made in forms(facts, arch, is_loadable, any_cluster)]
        tables = [(made, table if loads == LOADS else table.where(np.isin(table.loads, [LOADS.index(way) for way in loads]))) for made, table in tables]
        count = sum(len(table.batches) for _, table in tables)
        if count:
            break
    ranked: list[tuple[float, Candidates, Kernels, int]] = []
    for candidates, table in tables:
        times = time_ns(work_of(table, candidates.facts_of_rows, arch), arch)
        times = np.where(have_registers(table, candidates, rejected), times, times + times.max(initial=0.0))
        ranked += [(float(times[n]), candidates, table, int(n)) for n in np.argsort(times, kind="stable")[: SHOWN + len(rejected)]]
    ranked.sort(key=lambda one: one[0])
    found = [(ns, params) for ns, candidates, table, place in ranked if (params := candidates.params(table, place)) not in rejected]
    if not found:
        params = Candidates(facts, arch, is_loadable, may_be_phased=False).last_resort()
        return params, f"inner_outer_persistent: sums of a row fit into no block, and spill: {params}"
    lines = [f"  predicted {ns / 1000:.1f} us: {params}" for ns, params in found[:SHOWN]]
    return found[0][1], "\n".join([f"inner_outer_persistent: best of {count} candidates", *lines])
