"""Checks the arguments of a call of a fusion: count, kind, type, rank, device, sizes and strides.

Owns nothing but the plan kept per fusion; checks and messages are those of executions (`weft.runtime.binding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..analysis.extents import canonicalize_extents
from ..ir.fusion import Fusion
from ..runtime.binding import Bound, InputPlan


def check_arguments(fusion: Fusion, inputs: Sequence[Any]) -> Bound:
    """Raise unless `inputs` (flat) fit the inputs of `fusion`; return the sizes, strides and alignments that they bring.

    Errors: the UserErrors of `weft.runtime.binding`; each names the input, both values and what to do.
    """
    plan = fusion.__dict__.get("_input_plan")
    if plan is None or len(plan.inputs) != len(fusion._inputs):
        plan = fusion._input_plan = InputPlan(fusion, canonicalize_extents(fusion.clone()[0]))  # type: ignore[attr-defined]
    return plan.bind(inputs)
