"""Rewrites a schedule before loops are built: brings reductions into forms that lowering supports.

Owns two rewrites that mean the same: a reduction over serial and bound axes becomes two, and one into shared or global memory gets a register.
Read first: `prepare_reductions`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..expr import is_int
from ..ir.enums import MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.values import ReductionOp, TensorView
from ..schedule.caching import cache_before
from ..schedule.rfactor import rfactor

_LANES = (ParallelType.vectorize, ParallelType.group)


def prepare_reductions(fusion: Fusion) -> None:
    """Change the fusion so that every reduction makes a register tensor, over serial axes only or over bound ones only.

    Before: T1 in global memory = sum(T0) over [serial, TIDx].   After: T3 = sum(T0) over [serial], T2 = sum(T3) over [TIDx], T1 = T2.
    """
    for expr in list(fusion.tensor_exprs()):
        if not isinstance(expr, ReductionOp):
            continue
        tensor: TensorView = expr.outputs[0]  # type: ignore[assignment]
        if tensor.memory_type is not MemoryType.local:
            tensor = _detached(tensor, cache_before)
            tensor.compute_at = shared_loops(tensor)
        loop = tensor.get_loop_domain()
        serial = [n for n, a in enumerate(loop) if a.is_reduction() and not a.parallel.is_bound]
        if serial and any(a.is_reduction() and a.parallel.is_bound for a in loop) and not all(is_int(loop[n].sym, 1) for n in serial):
            position = tensor.compute_at
            first = _detached(tensor, partial(rfactor, axes=serial))
            first.compute_at = min(position, shared_loops(first))


def shared_loops(tensor: TensorView) -> int:
    """Return how many leading loops a reduction shares with its result."""
    for position, axis in enumerate(tensor.get_loop_domain()):
        if axis.is_reduction() or axis.parallel in _LANES:
            return position
    return len(tensor.get_loop_domain())


def _detached(tensor: TensorView, change: Callable[[TensorView], TensorView]) -> TensorView:
    """Apply a primitive that requires `tensor` not to be inlined; keep the inlining positions."""
    producers = tensor.definition().tensor_inputs  # type: ignore[union-attr]
    kept = {t: t.compute_at for t in (tensor, *producers)}
    for t in kept:
        t.compute_at = 0
    made = change(tensor)
    for t, position in kept.items():
        t.compute_at = position
    return made
