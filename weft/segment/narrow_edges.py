"""Tensors between kernels in the type in which the user holds them: a framework that rounds each result to 16 bits expects no more of one that is stored.

Within a kernel values stay in the type that they are computed in. Owns which tensors are rounded. Read first: `narrow_edges`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..analysis.precision import is_stored_narrow
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import Expr, PointwiseOp, TensorView
from ..ops.build import cast
from .plan import KernelStep, Step


def narrow_edges(fusion: Fusion, steps: Sequence[Step], edges: Collection[TensorView]) -> bool:
    """Let other kernels than that which computes a tensor of `edges` read what the user holds of it, in place; True if any does now.

    Before: the tensor is stored in the type that it is computed in.   After: it is cast to the narrower type, and back for these readers. Tensors that torch
    reads, or of which a lookup reads any place, stay.
    """
    others = {value for step in steps if not isinstance(step, KernelStep) for value in (*step.reads, *step.outputs)}
    whole = {t for e in fusion.tensor_exprs() for t in e.read_whole}
    is_changed = False
    for tensor in [t for t in edges if isinstance(t.definition(), PointwiseOp) and is_stored_narrow(fusion, t)]:
        if tensor in others or tensor in whole:
            continue
        own = {t.name for step in steps if isinstance(step, KernelStep) and tensor in step.outputs for t in step.fusion.tensors()}
        held = fusion.held[tensor.name]
        readers = [use for use in tensor.uses() if not any(t.name in own for t in use.tensor_outputs) and not _narrows(use, held)]
        if readers:
            narrow = cast(fusion, tensor, held)
            fusion.replace_inputs(readers, tensor, cast(fusion, narrow, tensor.dtype()))
            is_changed = True
    return is_changed


def _narrows(use: Expr, held: DataType) -> bool:
    """True for the cast itself, which the next cut may leave to the kernels that read it."""
    return use.op_name == "cast" and use.tensor_outputs[0].dtype() is held


__all__ = ["narrow_edges"]
