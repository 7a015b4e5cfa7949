"""Which random op draws which numbers: by its place in the definition, so that it does not matter which kernels compute it, or how many.

Owns that numbering. Read first: `drawing_ops`.
"""

from __future__ import annotations

from ..ir.fusion import Fusion
from ..ir.values import Expr, RandomOp


def drawing_ops(fusion: Fusion) -> list[Expr]:
    """Return the random ops that draw from torch's generator, in definition order, without those that no output needs. Op k uses the generator's offset / 4
    plus k, and one execution advances the offset by 4 for each.
    """
    drawing = [e for e in fusion.tensor_exprs() if isinstance(e, RandomOp) and len(e.inputs) == 2]
    return sorted(drawing, key=lambda e: e.attributes["index"])
