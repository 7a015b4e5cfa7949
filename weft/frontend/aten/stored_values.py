"""Ops that compute nothing, for graphs that change their arguments (`weft.frontend.updated_values`).

`weft.stored` makes a new value a result of its own, which a kernel can write where the argument lies. `weft.shown` is an argument of which a result is a view:
the result has no elements of its own, so it may be made before these are written.
"""

from __future__ import annotations

from typing import Any

import torch

from .rules import Operand, Translation, rule


def _stored_by_torch(value: torch.Tensor, stride: list[int]) -> torch.Tensor:
    return value.new_empty_strided(value.shape, stride).copy_(value)


_LIBRARY = torch.library.Library("weft", "FRAGMENT")  # noqa: TOR901  (for as long as the process runs)
_LIBRARY.define("stored(Tensor value, int[] stride) -> Tensor")
_LIBRARY.impl("stored", _stored_by_torch, "CompositeExplicitAutograd")
torch.library.register_fake("weft::stored", lambda value, stride: value.new_empty_strided(value.shape, stride), lib=_LIBRARY)
_LIBRARY.define("shown(Tensor(a) argument) -> Tensor(a)")
_LIBRARY.impl("shown", torch.ops.aten.alias.default, "CompositeExplicitAutograd")
torch.library.register_fake("weft::shown", torch.ops.aten.alias.default, lib=_LIBRARY)


@rule(torch.ops.weft.stored.default, takes_narrow=True)
def stored(t: Translation, value: Operand, _: Any) -> Operand:
    return t.ops.set(value)
