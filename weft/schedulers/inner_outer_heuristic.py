"""InnerOuterPersistent: chooses parameters by the predicted time of every candidate.

Pure: facts and arch in, params out. Every candidate that fits the chip (`inner_outer_candidates.py`) is predicted by the cost model, and the fastest is taken.
Read first: `choose_inner_outer`.
"""

from __future__ import annotations

import numpy as np

from ..arch import Arch
from .cost.model import time_ns
from .cost.two_sided import Kernels, work_of
from .inner_outer_candidates import Candidates
from .inner_outer_params import LOADS, InnerOuterParams
from .two_sides import TwoSidedFacts
from .limits import SHOWN


def forms(facts: TwoSidedFacts, arch: Arch, is_loadable: bool) -> list[Candidates]:
    """Return the candidates of every form: rows of one phase or any, a maximum and a sum of exponentials apart or together.

    Together only where threads have vectors: element by element each exponential waits for the one before (18432x481 bf16, H100: 28.3 us for 25.4).
    """
    out = []
    for is_online in (False, True)[: 1 + (facts.online is not None)]:
        phased = Candidates(facts, arch, is_loadable, is_online=is_online)
        out += [phased, Candidates(facts, arch, is_loadable, may_be_phased=False, is_online=is_online)] if phased.is_phased else [phased]
    return [made for made in out if made.vector > 1 or not made.is_online]


def choose_inner_outer(
    facts: TwoSidedFacts, arch: Arch, is_loadable: bool = True, rejected: frozenset[InnerOuterParams] = frozenset(), loads: tuple[str, ...] = LOADS
) -> tuple[InnerOuterParams, str]:  # fmt: skip
    """Return params, and what was compared.

    is_loadable: bulk copies can bring the rows of all inputs. rejected: params that are not to be chosen. loads: how rows may come.
    """
    ranked: list[tuple[float, Candidates, Kernels, int]] = []
    count = 0
    for candidates in forms(facts, arch, is_loadable):
        table = candidates.table()
        table = table if loads == LOADS else table.where(np.isin(table.loads, [LOADS.index(way) for way in loads]))
        times = time_ns(work_of(table, candidates.facts_of_rows, arch), arch)
        count += len(times)
        ranked += [(float(times[n]), candidates, table, int(n)) for n in np.argsort(times, kind="stable")[: SHOWN + len(rejected)]]
    ranked.sort(key=lambda one: one[0])
    found = [(ns, params) for ns, candidates, table, place in ranked if (params := candidates.params(table, place)) not in rejected]
    if not found:
        params = Candidates(facts, arch, is_loadable, may_be_phased=False).last_resort()
        return params, f"inner_outer_persistent: sums of a row fit into no block, and spill: {params}"
    lines = [f"  predicted {ns / 1000:.1f} us: {params}" for ns, params in found[:SHOWN]]
    return found[0][1], "\n".join([f"inner_outer_persistent: best of {count} candidates", *lines])
