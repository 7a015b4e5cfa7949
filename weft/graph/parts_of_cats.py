"""Parts of a cat that are computed for elements of other parts, too: where threads of a warp have elements of several parts, each computes all parts.

The gradient of means, scales and weights of mixtures is a cat of rows of ten, each of a formula of a hundred instructions. Stored part by part, each is
computed once, and a copy puts them side by side. Owns the comparison. Read first: `is_stored_sooner`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.op_cost import INSTRUCTIONS_PER_BYTE
from ..ir.graph_ops import LookupOp
from ..ir.values import PointwiseOp, TensorView
from ..ops.build import logical_axes
from .window_places import stored_instructions

AGREEING = 8 * 32
"""Neighbouring elements of one part, from which on at most one warp in eight has elements of two, and kernels have a branch for each part
(`weft.lower.branches`)."""
ROW_OF_A_THREAD, COLUMN_OF_A_THREAD = 16, 32
"""Elements of the innermost axes, or of another one, up to which a thread may have all, of which each is one part's (`weft.schedulers.whole_rows`)."""


def times_of_part(lookup: LookupOp) -> float:
    """Return how often an element of a part is computed where a cat selects it: as many threads compute it as there are elements for one of the part."""
    choice = _choice(lookup)
    if choice is None or lookup.op_name != "pad" or not lookup.attributes.get("is_discarded"):
        return 1.0
    part, whole = (_extents(t) for t in (lookup.source, lookup.tensor_outputs[0]))
    if part is None or whole is None or len(part) != len(whole):
        return 1.0
    dim = choice.attributes["part"][0]
    behind = math.prod(whole[dim + 1 :])
    is_of_a_thread = whole[dim] * behind <= ROW_OF_A_THREAD or behind > 1 and whole[dim] <= COLUMN_OF_A_THREAD
    return 1.0 if is_of_a_thread or part[dim] * behind >= AGREEING else whole[dim] / max(1, part[dim])


def _extents(tensor: TensorView) -> list[int] | None:
    """Return the sizes of a tensor; None if they are not known."""
    sizes = [axis.logical_extent for axis in logical_axes(tensor)]
    return [int(size.value) for size in sizes] if all(size.is_const for size in sizes) else None  # type: ignore[arg-type]


def is_stored_sooner(lookup: LookupOp, slots: float, *, is_beside_stored: bool) -> bool:
    """Tell whether a part that takes so many issue slots per element is stored and read in less time than it is computed for elements of other parts.
    Meanwhile each element of the result is written, and as many bytes are read. is_beside_stored: a kernel that copies parts is launched anyway."""
    times = times_of_part(lookup)
    moved = 2 * lookup.source.dtype().bits / 8
    saved = min(slots * (times - 1), (slots - INSTRUCTIONS_PER_BYTE * moved) * times)
    return saved > stored_instructions(lookup.source, is_launched=not is_beside_stored)


def parts_beside(lookup: LookupOp) -> Iterator[LookupOp]:
    """Yield the lookups of the other parts of a cat."""
    choice = _choice(lookup)
    while choice is not None and (after := _next_choice(choice)) is not None:
        choice = after
    while choice is not None:
        *_, first, rest = choice.inputs
        choice = None
        for value in (first, rest):
            above = value.definition()
            if isinstance(above, LookupOp) and above is not lookup:
                yield above
            elif value is rest and isinstance(above, PointwiseOp) and "part" in above.attributes:
                choice = above


def _choice(lookup: LookupOp) -> PointwiseOp | None:
    """Return the selection that a lookup is an operand of."""
    return _only_choice(lookup.tensor_outputs[0])


def _next_choice(choice: PointwiseOp) -> PointwiseOp | None:
    after = _only_choice(choice.tensor_outputs[0])
    return after if after is not None and after.inputs[2] is choice.tensor_outputs[0] else None


def _only_choice(tensor: TensorView) -> PointwiseOp | None:
    found = [use for use in tensor.uses() if isinstance(use, PointwiseOp) and "part" in use.attributes]
    return found[0] if len(found) == 1 else None


__all__ = ["is_stored_sooner", "parts_beside", "times_of_part"]
