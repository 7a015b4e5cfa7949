"""Writes addresses with constants in kernels whose params fix the row length.

Why: a thread's vectors of a row lie a product of sizes apart. As a parameter it is multiplied and added to every address; as a number it is part of the
instruction. Layer norm backward of 16384 bf16 columns: a tenth of all instructions.
Read first: `write_known_sizes`.
"""

from __future__ import annotations

from dataclasses import replace

from ..expr import Sym, const, substitute
from .contracts import lowering_pass
from .kernel_ir import Access, Kernel, Op, walk
from .state import BuildState


@lowering_pass(needs=["pipelines", "unswitched"], before=["grouped predicates"])
def write_known_sizes(kernel: Kernel, state: BuildState) -> Kernel:
    """Replace sizes in the addresses of ops by the constants of `StayingBlocks.sizes`.

    Before: addresses contain symbolic sizes. After: known sizes are constants there, and `kernel.assumptions` has the conditions; bounds and loop counts stay
    symbolic.
    Here because: statements are in their final places, so each address occurs once.
    """
    staying = state.staying
    if staying is None:
        return kernel
    kernel.sums_offsets = staying.sums_offsets
    known: dict[Sym, Sym] = {size: const(value) for size, value in staying.sizes}
    for size, value in known.items():
        kernel.assumptions += [(size, value), (value, size)]
    if known:
        for s in walk(kernel.body):
            if isinstance(s, Op):
                s.outputs = [_known(o, known) for o in s.outputs]
                s.operands = [_known(o, known) if isinstance(o, Access) else o for o in s.operands]
    return kernel


def _known(access: Access, known: dict[Sym, Sym]) -> Access:
    return replace(access, index=substitute(access.index, known))
