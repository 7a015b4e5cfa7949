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


def result_type(x: Tensor, dtype: torch.dtype | None = None, function: str = "", *, is_loss: bool = False) -> torch.dtype:
    """Return the type of a result: as given, float32 where torch's autocast gives that, else that of x. Errors: WrongArgument for a type that is no float."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        problem = f"the type of the result is {dtype!r}, which is not a torch.dtype of floats"
        raise WrongArgument(function=function, problem=problem, remedy="pass torch.float32, or omit it")
    return dtype or autocast_dtype(x, is_loss=is_loss) or x.dtype
