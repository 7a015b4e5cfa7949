"""Softmax, log-softmax, and masked and causal softmax. Read first: `softmax`."""

from __future__ import annotations

from typing import Any

import torch

from ..ops import composites as c
from .family import Family
from .quick import quick
from .results import Tensor, WrongArgument, WrongDim, result_type

_SOFTMAX = Family("softmax", lambda o, x, *, dim, out: o.softmax(x, dim, out), ["input"], keeps_layout=True)
_LOG_SOFTMAX = Family("log_softmax", lambda o, x, *, dim, out: o.log_softmax(x, dim, out), ["input"], keeps_layout=True)


def _softmax_dim(name: str, x: Tensor, dim: int | None) -> int:
    if dim is None:
        raise WrongArgument(function=name, problem="dim is None", remedy="pass the axis: dim=-1")
    if not isinstance(dim, int):
        raise WrongArgument(function=name, problem=f"dim is {dim!r}", remedy="pass the number of an axis: dim=-1")
    if not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        raise WrongDim(function=name, dim=dim, axes=x.dim())
    return dim % max(x.dim(), 1)


@quick
def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """torch.nn.functional.softmax; dim is required."""
    place = _softmax_dim("softmax", input, dim)
    if not input.dim():  # torch takes a single number for a row of one
        return softmax(input.reshape(1), 0, dtype=dtype).reshape(())
    return _SOFTMAX((input,), dim=place, out=result_type(input, dtype, "softmax"))


@quick
def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """torch.nn.functional.log_softmax; dim is required."""
    place = _softmax_dim("log_softmax", input, dim)
    if not input.dim():  # torch takes a single number for a row of one
        return log_softmax(input.reshape(1), 0, dtype=dtype).reshape(())
    return _LOG_SOFTMAX((input,), dim=place, out=result_type(input, dtype, "log_softmax"))


def _masked_softmax(o: Any, x: Any, mask: Any, *, scale: float, causal: bool) -> Any:
    scores = c.wide(x) * scale
    if mask is not None and mask.dtype().is_bool:
        scores = o.where(mask, scores, float("-inf"))
    elif mask is not None:
        scores = scores + c.wide(mask)
    if causal:
        scores = o.where(o.causal_mask(x.size(-2), x.size(-1)), scores, float("-inf"))
    return o.softmax(scores, -1, x.dtype())


_MASKED = Family("scaled_masked_softmax", _masked_softmax, ["input", "mask"])


@quick
def scaled_masked_softmax(input: Tensor, mask: Tensor | None, scale: float = 1.0) -> Tensor:
    """softmax(scale * input) over the last axis; mask: True where an element counts, or floats that are added; it broadcasts against input."""
    if mask is not None and not (mask.dtype is torch.bool or mask.is_floating_point()):
        problem = f"the mask has the type {mask.dtype}, which neither chooses elements nor is added"
        raise WrongArgument(function="scaled_masked_softmax", problem=problem, remedy="pass mask.bool(), True where an element counts, or floats to add")
    return _MASKED((input, mask), scale=float(scale), causal=False)


@quick
def scaled_causal_softmax(input: Tensor, scale: float = 1.0) -> Tensor:
    """softmax(scale * input [..., queries, keys]) over the keys that a query may see: key <= query + keys - queries."""
    if input.dim() < 2:
        problem = f"the input has sizes {list(input.shape)}"
        raise WrongArgument(function="scaled_causal_softmax", problem=problem, remedy="pass scores [..., queries, keys]")
    return _MASKED((input, None), scale=float(scale), causal=True)


__all__ = ["log_softmax", "scaled_causal_softmax", "scaled_masked_softmax", "softmax"]
