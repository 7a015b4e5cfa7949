"""Forward-mode tangents, computed as the derivative of the backward with respect to its incoming gradients; no further rules are needed.

A backward is linear in its gradients: grads = J^T g. Its derivative with respect to g along tangents of the inputs is J t, whatever g is.
Read first: `tangents_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

Execute = Callable[[Sequence[Any]], list[torch.Tensor]]


def dual_outputs(differentiable: Any, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Execute a `weft.api.autograd.Differentiable` on inputs of which some are dual tensors; return dual tensors where a tangent flows."""
    parts = [forward_ad.unpack_dual(v) if isinstance(v, torch.Tensor) and v.is_floating_point() else (v, None) for v in inputs]
    outputs, tangents = tangents_of(differentiable.execute, [primal for primal, _ in parts], [tangent for _, tangent in parts])
    return [o if t is None else forward_ad.make_dual(o, t) for o, t in zip(outputs, tangents)]


def tangents_of(
    execute: Execute, primals: Sequence[Any], tangents: Sequence[torch.Tensor | None]
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return (outputs, their tangents; None where none flows). execute: records gradients. Both are part of the graph if a primal requires a gradient."""
    records = torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in (*primals, *tangents))
    with torch.enable_grad():
        inputs = list(primals)
        for place, tangent in enumerate(tangents):
            if tangent is not None and not inputs[place].requires_grad:
                inputs[place] = inputs[place].detach().requires_grad_()
        outputs = execute(inputs)
        flowing = [o for o in outputs if o.requires_grad]
        grads = [torch.zeros_like(o).requires_grad_() for o in flowing]
        wanted = [place for place, tangent in enumerate(tangents) if tangent is not None]
        back = torch.autograd.grad(flowing, [inputs[place] for place in wanted], grads, create_graph=True, allow_unused=True)
        pairs = [(b, tangents[place]) for b, place in zip(back, wanted) if b is not None and b.requires_grad]
        made: Sequence[torch.Tensor | None] = [None] * len(grads)
        if pairs:
            made = torch.autograd.grad([b for b, _ in pairs], grads, [t for _, t in pairs], create_graph=records, allow_unused=True)
    found = iter(made)
    results = [next(found) if o.requires_grad else None for o in outputs]
    return (outputs, results) if records else ([o.detach() for o in outputs], results)
