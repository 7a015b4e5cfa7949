"""What ops and monoids are said to cost: choices of kernels were measured with these numbers, so that one that changes is a decision.

`costs.txt` has a line per op and monoid. `UPDATE_GOLDEN=1` writes it anew; kernels that choose otherwise then (`weft record`, `weft diff`) have to be measured.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft import DataType, FusionDefinition
from weft.analysis.op_cost import OpCost, cost_of
from weft.ops.monoids import MONOIDS
from weft.ops.registry import OPS

KEPT = Path(__file__).parent / "costs.txt"
OF_OPS = ("arity", "flops", "narrow_flops", "is_exp", "is_mufu", "is_steep", "ulp")
OF_MONOIDS = ("is_idempotent", "has_rounding", "needs_elements", "instructions", "mufu", "exchange_factor")


def lines() -> list[str]:
    rows = [(f"op {name}", OPS[name], OF_OPS) for name in sorted(OPS)] + [(f"monoid {kind}", MONOIDS[kind], OF_MONOIDS) for kind in sorted(MONOIDS)]
    return [f"{name}: " + ", ".join(f"{field} {getattr(row, field):d}" for field in fields if getattr(row, field)) for name, row, fields in rows]


def test_no_cost_changes_by_chance() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        KEPT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    kept = KEPT.read_text(encoding="utf-8").splitlines()
    names = {line.split(":")[0] for line in kept}
    assert [line for line in lines() if line.split(":")[0] in names] == kept
    assert {f"op {name}" for name in OPS if OPS[name].source} <= names  # other tests define ops and monoids of their own


def test_nothing_costs_nothing() -> None:
    assert cost_of([], set()) == OpCost(0, 0, False, False, False)


@pytest.mark.parametrize(("exponent", "instructions"), [(2.0, 1), (3.0, 2), (4.0, 2), (5.0, 3), (6.0, 3), (7.0, 4), (8.0, 3), (0.5, 8), (1.5, 11), (-0.5, 4), (-1.0, 5)])
def test_powers_with_a_text_of_their_own_cost_less(exponent: float, instructions: int) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        y = fd.ops.pow(x, exponent)
        fd.add_output(y)
    found = cost_of([y.definition()], {y})
    assert (found.instructions, OPS["pow"].flops > instructions) == (instructions, True)
