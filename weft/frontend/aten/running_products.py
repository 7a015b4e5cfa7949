"""Gradients of running products (`cumprod`), an op of weft's own: the product of what is before an element, times a linear recurrence from the end.

torch's formula divides by elements, so it finds the first element of each row that is 0, and treats those before and behind it apart.
`weft.frontend.running_products` puts it into a graph. Read first: `running_product_backward`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops.step_gradients import running_product_gradient
from ...ops.torch_ops import linear_recurrence
from .rules import Operand, Translation, rule

_LIBRARY = torch.library.Library("weft", "FRAGMENT")  # noqa: TOR901  (for as long as the process runs)
_LIBRARY.define("running_product_backward(Tensor grad, Tensor x, Tensor product, int dim) -> Tensor")


def _in_torch(grad: Tensor, x: Tensor, product: Tensor, dim: int) -> Tensor:
    """Return the gradient of x, of its shape and type. product: the running product of x along dim, grad: its gradient."""
    wide = torch.promote_types(torch.promote_types(x.dtype, product.dtype), torch.float32)
    last = max(x.shape[dim] - 1, 0)
    gates = torch.cat([x.narrow(dim, 1, last), torch.zeros_like(x.narrow(dim, 0, 1))], dim).to(wide) if x.numel() else x.to(wide)
    before = torch.cat([torch.ones_like(product.narrow(dim, 0, 1)), product.narrow(dim, 0, last)], dim).to(wide) if x.numel() else x.to(wide)
    steps = linear_recurrence(gates.flip(dim), grad.to(wide).flip(dim), dim).flip(dim)
    return (before * steps).to(x.dtype)


_LIBRARY.impl("running_product_backward", _in_torch, "CompositeExplicitAutograd")
torch.library.register_fake("weft::running_product_backward", lambda grad, x, product, dim: x.new_empty(x.shape), lib=_LIBRARY)


@rule(torch.ops.weft.running_product_backward.default)
def running_product_backward(t: Translation, grad: Operand, x: Operand, product: Operand, dim: int) -> Operand:
    """16-bit floats are computed in float32."""
    return t.to(running_product_gradient(t.calls, t.wide(x), t.wide(product), t.wide(grad), dim), t.result_dtype)


__all__ = ["running_product_backward"]
