"""Recomputation: clones a chain of pointwise ops for one use, so that its input is kept on chip instead of its result.

Owns what may be cloned and where the chain ends. Which tensors to project to their inputs is decided by the schedulers.
Cloned are the ops of ELEMENTWISE, which are cheap; random numbers could be drawn again, but cost more than keeping them. Read first: `recompute_chain`.
"""

from __future__ import annotations

from collections.abc import Container, Set

from ..errors import UserError
from ..ir.fusion import Fusion
from ..ir.values import ELEMENTWISE, BroadcastOp, Expr, LoadStoreOp, ReductionOp, TensorView, Val, WelfordOp
from .caching import _computed_alike


class NotAUse(UserError):
    code = "W670"
    what = "cannot recompute {tensor} for {use}, which does not read it"
    fix = "pass an expression that reads the tensor"


def recompute_chain(
    tv: TensorView, for_use: Expr, memo: dict[TensorView, TensorView] | None = None, *, whole_rows: Set[int] = frozenset(),
    cloned: tuple[type[Expr], ...] = ELEMENTWISE,
) -> TensorView:  # fmt: skip
    """Make `for_use` read a clone of `tv` computed from the same (cached) inputs and reduction results; return the clone.

    The chain of producers is cloned up to the caches of inputs, inputs, and values computed from reductions: of these the first broadcast (or, without one, the
    reduction itself) is read, not cloned. Give the same `memo` to several calls to share clones.
    whole_rows: names of tensors with all elements of a row; one of these that is a broadcast has an additional axis besides the row's, and is cloned. cloned:
    the expressions of which a chain consists; it ends at any other one. Call it before transforming axes. Returns `tv` itself if there is nothing to clone.
    """
    if not any(v is tv for v in for_use.inputs):
        raise NotAUse(tensor=tv, use=for_use)
    fusion: Fusion = tv.fusion  # type: ignore[assignment]
    reduced = _BehindReductions(whole_rows)
    clone = _clone(fusion, tv, {} if memo is None else memo, reduced, cloned)
    if clone is not tv:
        fusion.replace_input(for_use, tv, clone)
    return clone


def chain_ends(tv: TensorView) -> list[TensorView]:
    """Return the tensors that a clone of `tv` reads, which must stay on chip if it is recomputed (broadcast reduction results cost little)."""
    reduced = _BehindReductions(frozenset())
    ends: dict[TensorView, None] = {}
    seen: set[TensorView] = set()
    stack = [tv]
    while stack:
        tensor = stack.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if is_end(tensor, reduced):
            ends[tensor] = None
        else:
            stack.extend(reversed(tensor.definition().tensor_inputs))  # type: ignore[union-attr]
    return list(ends)


def after_reduction(fusion: Fusion) -> set[TensorView]:
    """Return the tensors that depend on a reduction of the fusion."""
    out: set[TensorView] = set()
    for expr in fusion.tensor_exprs():
        if isinstance(expr, (ReductionOp, WelfordOp)) or any(t in out for t in expr.tensor_inputs):
            out.update(expr.outputs)  # type: ignore[arg-type]
    return out


class _BehindReductions:
    """The tensors that depend on a reduction, found for those that are asked about; none of the names `but`."""

    def __init__(self, but: Set[int]) -> None:
        self._but, self._found = but, dict[TensorView, bool]()

    def __contains__(self, tensor: object) -> bool:
        return isinstance(tensor, TensorView) and tensor.name not in self._but and self._depends(tensor)

    def _depends(self, tensor: TensorView) -> bool:
        found, stack = self._found, [tensor]
        while stack:
            at = stack[-1]
            made = at.definition()
            if at not in found and made is not None and not isinstance(made, (ReductionOp, WelfordOp)):
                if unknown := [t for t in made.tensor_inputs if t not in found]:
                    stack += unknown
                    continue
            if at not in found:
                found[at] = made is not None and (isinstance(made, (ReductionOp, WelfordOp)) or any(found[t] for t in made.tensor_inputs))
            stack.pop()
        return found[tensor]


def is_end(tensor: TensorView, reduced: Container[TensorView], cloned: tuple[type[Expr], ...] = ELEMENTWISE) -> bool:
    """True for a tensor that a recomputed chain reads instead of cloning it. cloned: see `recompute_chain`."""
    definition = tensor.definition()
    if definition is None or not isinstance(definition, cloned) or tensor.has_root() and not isinstance(definition, LoadStoreOp):
        return True
    if isinstance(definition, LoadStoreOp) and definition.tensor_inputs and definition.tensor_inputs[0].is_fusion_input:
        return True
    return isinstance(definition, BroadcastOp) and tensor in reduced


def _clone(
    fusion: Fusion, tensor: TensorView, memo: dict[TensorView, TensorView], reduced: Container[TensorView], cloned: tuple[type[Expr], ...]
) -> TensorView:  # fmt: skip
    if tensor in memo:
        return memo[tensor]
    if is_end(tensor, reduced, cloned):
        memo[tensor] = tensor
        return tensor
    definition: Expr = tensor.definition()  # type: ignore[assignment]
    inputs: list[Val] = [_clone(fusion, v, memo, reduced, cloned) if isinstance(v, TensorView) else v for v in definition.inputs]
    clone = _computed_alike(fusion, tensor)
    copy = object.__new__(type(definition))
    copy.__dict__.update(definition.__dict__)
    copy.inputs, copy.outputs, copy.attributes = inputs, [clone], dict(definition.attributes)
    fusion.register(copy)
    memo[tensor] = clone
    return clone


__all__ = ["after_reduction", "chain_ends", "is_end", "recompute_chain"]
