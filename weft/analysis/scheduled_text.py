"""A scheduled fusion as nvFuser prints one: its expressions, and how the loops of each tensor were made from its axes.

Owns that layout; how one value prints is in `weft.ir`. Read first: `scheduled_text`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.fusion import Fusion
from ..ir.printing import boundary_text, expr_text
from ..ir.values import IterDomain, TensorView
from .axes import axis_transforms


def scheduled_text(fusion: Fusion, tensor_transforms: bool = False) -> str:
    """Return inputs, outputs and expressions as text; with `tensor_transforms` the domains of every tensor, and the transforms between them."""
    body = "".join(f"{expr_text(expr)}\n" for expr in fusion.exprs())
    transforms = "".join(map(_transforms_of, fusion.tensors())) if tensor_transforms else ""
    printer = f"\nTransformPrinter : \n{transforms}" if tensor_transforms else ""
    return f"{boundary_text(fusion)}\n%kernel {{\n{body}{printer}}} // %kernel\n"


def _transforms_of(tensor: TensorView) -> str:
    domain = tensor.domain()
    lines = [str(tensor)]
    if domain.root is not None:
        lines += [f" root domain : ({_list(domain.root)})", *_steps(tensor, domain.logical)]
    lines.append(f" logical domain : ({_list(domain.logical)})")
    if domain.allocation is not None:
        lines.append(f" allocation domain : ({_list(domain.allocation)})")
    lines.append(f" contiguity: {' '.join('n' if flag is None else 't' if flag else 'f' for flag in domain.contiguity)}")
    before = _steps(tensor, domain.logical)
    lines += [step for step in _steps(tensor, domain.loop) if step not in before]
    return "\n".join([*lines, f" loop domain : ({_list(domain.loop)})"]) + "\n"


def _list(axes: Iterable[IterDomain]) -> str:
    return ", ".join(map(str, axes))


def _steps(tensor: TensorView, axes: Iterable[IterDomain]) -> list[str]:
    return [f"  {expr_text(transform)}" for transform in axis_transforms(tensor, list(axes))]


__all__ = ["scheduled_text"]
