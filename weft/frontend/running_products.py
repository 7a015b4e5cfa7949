"""Gradients of running products: while weft traces a graph, `cumprod_backward` is one op of weft's own (`weft.frontend.aten.running_products`).

torch composes it of other ops: about 35 in torch 2.13, some for each element of a row in torch 2.11, where tracing a long row does not end. Its place is taken
at the dispatcher's key of such compositions, for all of the process, but only calls within `running_products_kept` differ. Read first: `running_products_kept`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._C import DispatchKey

KEY = DispatchKey.CompositeImplicitAutograd
OP = torch.ops.aten.cumprod_backward.default


class _Kept(threading.local):
    """Whether this thread keeps gradients of running products as one op, on a CPU, too."""

    is_on = False
    is_cpu_ours = False


_KEPT = _Kept()


@contextlib.contextmanager
def running_products_kept(*, is_emulated: bool) -> Iterator[None]:
    """While this thread is inside, gradients of running products are `weft::running_product_backward`, on a CPU only where the emulator runs the graph."""
    _take_its_place()
    before = _KEPT.is_on, _KEPT.is_cpu_ours
    _KEPT.is_on, _KEPT.is_cpu_ours = True, is_emulated
    try:
        yield
    finally:
        _KEPT.is_on, _KEPT.is_cpu_ours = before


@functools.cache
def _take_its_place() -> None:
    """Define what composes the op from now on. Another library's composition, if there is one, is what others still get."""
    theirs = OP.py_kernels.pop(KEY, None) or functools.partial(OP._op_dk, KEY)

    def cumprod_backward(grad: Tensor, x: Tensor, dim: int, output: Tensor) -> Tensor:
        if _KEPT.is_on and _is_ours(grad, x, output):
            return torch.ops.weft.running_product_backward.default(grad, x, output, dim % x.dim())
        return theirs(grad, x, dim, output)

    OP.py_impl(KEY)(cumprod_backward)


def _is_ours(*tensors: Tensor) -> bool:
    """True for real floats with an axis, where no gradient of this gradient is recorded."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return all(t.is_floating_point() and t.dim() and (_KEPT.is_cpu_ours or t.device.type != "cpu") for t in tensors)


__all__ = ["running_products_kept"]
