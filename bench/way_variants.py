"""What is varied in a specialized kernel, one thing at a time: stages, roles, groups, registers, rows at once, bulk stores.

Owns the list; every entry is legal params or the Decline that says why there are none. Read first: `variants_of`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.arch import Arch
from weft.schedulers.async_rows_heuristic import AsyncRowsParams, choose_async_rows
from weft.schedulers.base import Decline
from weft.schedulers.facts import PersistentFacts

STAGES = (2, 3, 4, 5, 6, 8, 10, 12)


def variants_of(facts: PersistentFacts, arch: Arch) -> dict[str, Any]:
    """Return name -> params of the specialized kernel for these facts with one thing changed, or a Decline."""
    base = choose_async_rows(facts, arch, "specialized")
    if isinstance(base, Decline):
        return {"as chosen": base}
    out: dict[str, Any] = {"as chosen": base}
    out |= {f"{n} stages": replace(base, stages=n) for n in STAGES if n < base.stages}
    out |= {f"{n} role{'s' * (n > 1)}": replace(base, async_warps=n) for n in range(1, facts.vectorizable_inputs + 1) if facts.vectorizable_inputs > 1}
    out["registers shared"] = base if base.registers else Decline("each thread has as many registers as it can use")
    out["registers alike"] = replace(base, registers=None)
    for groups in (1, 2):
        out[f"{groups} group{'s' * (groups > 1)}"] = choose_async_rows(facts, arch, "specialized", groups=groups)
    out["two rows at once"] = replace(base, grouped_rows=2, stages=max(2, base.stages // 2))
    out["bulk stores"] = choose_async_rows(facts, arch, "specialized", is_stored_in_bulk=True)
    return {name: params.filled(facts) if isinstance(params, AsyncRowsParams) else params for name, params in out.items()}
