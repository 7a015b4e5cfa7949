"""How a reduction across the threads of a block is carried out. Read first: `reduction_form`."""

from __future__ import annotations

from ..expr import ONE, Sym, is_divisible, product
from ..ir.enums import BLOCK_TYPES, ParallelType
from .kernel_ir import Reduce


def reduction_form(reduce: Reduce, launch: dict[ParallelType, Sym]) -> str:
    """How a reduction across threads is done: "warp" (one warp or less, shuffles only), "rows" (whole warps along x, or the whole block), "tree" (through
    shared memory)."""
    used = [p for p in BLOCK_TYPES if p in launch and launch[p] is not ONE]
    x = launch.get(ParallelType.block_x, ONE)
    if not [p for p in reduce.thread_types if p in used]:
        return "warp"
    has_whole_warps = is_divisible(product(launch[p] for p in used), 32)  # shuffles name all lanes of a warp
    if reduce.thread_types == (ParallelType.block_x,):
        if x.is_const and x.value <= 32 and x.value & (x.value - 1) == 0 and has_whole_warps:  # type: ignore[operator]
            return "warp"
        if is_divisible(x, 32):
            return "rows"
    if reduce.thread_types == BLOCK_TYPES[:2] and all(launch[p].is_const for p in BLOCK_TYPES[:2]):
        width: int = launch[BLOCK_TYPES[0]].value * launch[BLOCK_TYPES[1]].value  # type: ignore[assignment]
        if width <= 32 and width & (width - 1) == 0 and has_whole_warps:
            return "warp"
        if width % 32 == 0:
            return "rows"
    if set(used) <= set(reduce.thread_types) and has_whole_warps:
        return "rows"
    return "tree"
