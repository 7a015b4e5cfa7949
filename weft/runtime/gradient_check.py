"""What executions without `fd.autograd()` owe torch's autograd: a word where a gradient is cut, a refusal where one would be wrong, version counters.

Owns all three. They cost nothing per call: the first two run when a call is prepared, whether a tensor requires a gradient is part of its signature.
Read first: `check`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ..errors import Unsupported, UserError, find_stacklevel, user_location
from ..ir.values import Val
from .outputs import OutputPlan

CUT = (
    "W138: input {index} ({value}) requires a gradient, and this definition records none: its outputs are cut from the graph.\n"
    "  at   {location}\n"
    "  fix: call fd.autograd() before executing, or execute under torch.no_grad() or on tensor.detach()"
)


class GradientCut(UserWarning):
    """Warning: an input requires a gradient that will not be computed."""


class WrittenWithGradient(UserError):
    code = "W139"
    what = "input {index} ({value}) requires a gradient, and an output is written into it: autograd would go on with the old values"
    fix = "execute under torch.no_grad(), or on tensor.detach(), or omit alias_input"


class TangentCut(Unsupported):
    code = "W186"
    what = "input {index} ({value}), which has a tangent of forward mode: this definition records none"
    fix = "call fd.autograd() before executing, or execute on torch.autograd.forward_ad.unpack_dual(tensor).primal"


class HasOutputs(Protocol):
    """The part of definitions of equal structure that is needed here."""

    outputs: OutputPlan


class Definition(Protocol):
    """The part of a caller that the check needs. shown: the inputs with this definition's names."""

    shown: list[Val]
    has_warned_of_gradients: bool

    @property
    def shared(self) -> HasOutputs: ...


def check(caller: Definition, values: Sequence[Any]) -> None:
    """Warn once per definition that gradients are cut. Errors: WrittenWithGradient, TangentCut."""
    for index, value in enumerate(values):
        if has_tangent(value):
            raise TangentCut(index=index, value=caller.shown[index])
    if not torch.is_grad_enabled():
        return
    requiring = [i for i, (v, _) in enumerate(zip(values, caller.shown)) if isinstance(v, torch.Tensor) and v.requires_grad]
    if not requiring:
        return
    written = caller.shared.outputs.written
    for index in requiring:
        if index in written:
            raise WrittenWithGradient(index=index, value=caller.shown[index])
    if not caller.has_warned_of_gradients:
        caller.has_warned_of_gradients = True
        text = CUT.format(index=requiring[0], value=caller.shown[requiring[0]], location=user_location())
        warnings.warn(text, GradientCut, stacklevel=find_stacklevel())


def has_tangent(value: Any) -> bool:
    """Tell whether a value carries a tangent of forward mode (torch.autograd.forward_ad)."""
    forward_ad = torch.autograd.forward_ad
    is_possible = forward_ad._current_level >= 0 and isinstance(value, torch.Tensor) and value.is_floating_point()
    return is_possible and forward_ad.unpack_dual(value).tangent is not None


def was_written(tensor: torch.Tensor) -> None:
    """Tell autograd that a tensor has new values, so that it refuses to use saved old ones."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
