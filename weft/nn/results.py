"""Shared by the functions of `weft.nn.functional`: argument errors and the type of results. Read first: `result_type`."""

from __future__ import annotations

import torch

from ..errors import UserError
from .family import autocast_dtype

Tensor = torch.Tensor


class WrongArgument(UserError, ValueError):
    code = "W142"
    what = "{function}: {problem}"
    fix = "{remedy}"


class WrongDim(UserError, IndexError):
    code = "W151"
    what = "{function}: dim {dim} is out of range for {axes} axes"
    fix = "name an axis of the input; -1 is the last"


def result_type(x: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
    """Return the type of a result: as given, float32 under autocast, else that of x."""
    return dtype or autocast_dtype(x) or x.dtype
