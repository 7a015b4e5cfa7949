"""Products that are rounded by themselves, so that what is computed from them is equal to the bit in every kernel, and in torch.

Graphs get them where a backward computes again what it compares with a saved maximum (`weft.frontend.compared_extrema`).
"""

from __future__ import annotations

import torch

from .rules import Kind, Operand, Translation, rule

_LIBRARY = torch.library.Library("weft", "FRAGMENT")  # noqa: TOR901  (for as long as the process runs)
_LIBRARY.define("rounded_mul(Tensor a, Tensor b) -> Tensor")
_LIBRARY.impl("rounded_mul", torch.mul, "CompositeExplicitAutograd")
torch.library.register_fake("weft::rounded_mul", torch.mul, lib=_LIBRARY)


@rule(torch.ops.weft.rounded_mul.default)
def rounded_mul(t: Translation, a: Operand, b: Operand) -> Operand:
    dtype = t.compute_dtype(Kind.DEFAULT)
    return t.ops.rounded_mul(t.to(a, dtype), t.to(b, dtype))
