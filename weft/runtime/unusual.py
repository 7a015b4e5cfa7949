"""Tensors that kernels cannot read, by name, and those that they can read after a wait.

Owns the list. Read first: `unusual`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import UserError


class NotDense(UserError, TypeError):
    code = "W147"
    what = "input {index} is {kind}; kernels read dense tensors"
    fix = "{remedy}"


class NoListOfInputs(UserError, TypeError):
    code = "W148"
    what = "execute takes a list of inputs, and one tensor of sizes {sizes} was given"
    fix = "write execute([tensor])"


def unusual(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Return (kind, remedy) for a tensor that kernels cannot read, else None."""
    if _is_fake(tensor):
        return "a fake tensor", "pass a real tensor; torch.compile and torch.export can trace weft.nn's functions and operators made by weft.op"
    if is_sharded(tensor):
        return "a DTensor, a part of which is in this process", "pass x.to_local(), or call weft.nn.functional or an operator of weft.op, which take DTensors"
    if tensor.is_nested:
        return "a nested tensor", "pad it: torch.nested.to_padded_tensor(x, 0.0)"
    if tensor.layout is not torch.strided:
        return f"a sparse tensor ({tensor.layout})", "make it dense: x.to_dense()"
    if tensor.is_quantized or tensor.is_mkldnn:
        return "a quantized or mkldnn tensor", "make it plain: x.dequantize() or x.to_dense()"
    if tensor.device.type == "meta":
        return "a meta tensor, which has no data", "pass a tensor with data: torch.empty_like(x, device='cuda')"
    if torch._is_functional_tensor(tensor) or type(tensor).__name__ == "FunctionalTensor":
        return "a functional tensor, as torch's tracers make them", "call the functions of weft.nn.functional under torch.compile, or weft.op"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor of torch.func", "call the functions of weft.nn.functional, or weft.op, which torch.func knows"
    return None


def _is_fake(tensor: torch.Tensor) -> bool:
    if type(tensor) is torch.Tensor:
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a DTensor, without importing its module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def waited(values: list[Any]) -> list[Any]:
    """Return the values with the results of collectives that may still be running replaced by what they hold, after a wait, as every op of torch does."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    if module is None:
        return values
    kind = module.AsyncCollectiveTensor
    return [v.trigger_wait() if isinstance(v, kind) else v for v in values] if any(isinstance(v, kind) for v in values) else values


def check(values: Sequence[Any]) -> None:
    """Errors: NotDense names the first input that kernels cannot read."""
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            found = unusual(value)
            if found is not None:
                raise NotDense(index=index, kind=found[0], remedy=found[1])
