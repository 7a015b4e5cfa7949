"""Scatters as kernels: the base is written to memory, values go into it at the positions of the index, and the result is what the memory holds then.

A base that is in memory already, and that nothing else reads, is not copied: the result of an earlier scatter, and an input that the result is to be written
into, as a cache of keys is. Owns that rewriting, and which scatters stay with torch: those whose bits would depend on an order that must be the same every
time, products, and types without atomic additions. Read first: `scatter_in_kernels`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScatterOp, ScatterStoreOp, WrittenOp
from ..ir.values import Expr, FullOp, LoadStoreOp, PointwiseOp, Scalar, TensorView
from ..ops.build import cast, logical_axes, own_axis, pointwise
from ..ops.factories import full
from ..ops.lookups import SUMMED, leading_part
from ..options import must_be_in_order
from .questions import Questions

TAKEN = {"sum": SUMMED, "max": SUMMED, "min": SUMMED, "set": tuple(t for t in DataType if t.bits >= 8)}
"""By how values are combined: the types of the base. Those of 16 bits are accumulated in Float."""


def has_scatters(fusion: Fusion) -> bool:
    """True if a definition has a scatter that kernels can compute."""
    return any(map(_is_for_kernels, fusion.tensor_exprs()))


def _is_for_kernels(expr: Expr) -> bool:
    if not isinstance(expr, ScatterOp):
        return False
    base, index, source = expr.inputs
    assert isinstance(base, TensorView) and isinstance(index, TensorView)
    is_expanded = any(a.expanded_extent is not None for t in ((base,) if expr.has_rows else expr.tensor_inputs) for a in logical_axes(t))
    sides = zip(logical_axes(index), logical_axes(source)) if isinstance(source, TensorView) and not expr.has_rows else ()
    is_plain = not is_expanded and all(a.is_broadcast() is b.is_broadcast() for a, b in sides)
    return is_plain and base.dtype() in TAKEN.get(expr.attributes["kind"], ())


def _has_order(expr: Expr) -> bool:
    """True if the bits of the result depend on the order in which equal positions meet."""
    kind, dtype = expr.attributes["kind"], expr.tensor_outputs[0].dtype()
    return kind == "set" or kind == "sum" and dtype.is_float


def scatter_in_kernels(fusion: Fusion, questions: Questions) -> None:
    """Replace scatters, in place, by writes into a copy of their base."""
    found = [expr for expr in fusion.tensor_exprs() if _is_for_kernels(expr)]
    if found:
        in_order = must_be_in_order()
        questions.record(("in order", in_order))
        for expr in found:
            if not (in_order and _has_order(expr)):
                _write_into_copy(fusion, expr, questions)


def _write_into_copy(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    base, index, source = expr.inputs
    out, kind = expr.tensor_outputs[0], expr.attributes["kind"]
    assert isinstance(base, TensorView) and isinstance(index, TensorView)
    dtype = DataType.Float if kind != "set" and out.dtype().is_reduced_float else out.dtype()
    has_rows = isinstance(expr, ScatterOp) and expr.has_rows
    fusion.remove(expr)
    begun: Any = cast(fusion, base, dtype)
    begun = _with_leading_nans(fusion, begun, kind) if kind in ("max", "min") and dtype.is_float else begun
    memory = begun if begun is base and _is_free(fusion, base, expr) else _copy(fusion, begun)
    value: Any = cast(fusion, source if has_rows else _at_the_index(fusion, source, index, questions), dtype)
    value = _copy(fusion, value)
    written = fusion.new_tensor([own_axis(fusion, a) for a in logical_axes(value if has_rows else index)], dtype)
    store = ScatterStoreOp([value, index, memory], [written])
    store.attributes.update(expr.attributes, op="scatter_store")
    fusion.register(store)
    result = out if dtype is out.dtype() else fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(out)], dtype)
    _keep_order(fusion, out, [result] if memory is base else [memory, result])
    fusion.register(WrittenOp([memory, written], [result], op="written"))
    if result is not out:
        fusion.register(PointwiseOp([result], [out], op="cast", compute=dtype, dtype=out.dtype()))


def _is_free(fusion: Fusion, base: TensorView, scatter: Expr) -> bool:
    """True if a scatter, which has been removed, may write into its base: nothing else reads that, not even the scatter as its values or its index, and no
    caller sees what it was before."""
    order, out = _order_of(base), scatter.tensor_outputs[0]
    is_read = scatter.inputs.count(base) > 1 or any(use in fusion.tensor_exprs() for use in base.uses())
    if order is None or order != _order_of(out) or base.is_fusion_output or is_read:
        return False
    return isinstance(base.definition(), WrittenOp) or base is _written_input(fusion, out)


def _order_of(tensor: TensorView) -> list[int] | None:
    """Return the axes in the order in which they lie in memory, without those of one element; None if there are gaps."""
    domain, axes = tensor.domain(), logical_axes(tensor)
    return None if False in domain.contiguity else [axes.index(a) for a in domain.maybe_allocation if a in axes and not a.is_broadcast()]


def _written_input(fusion: Fusion, out: TensorView) -> TensorView | None:
    """Return the input that a scatter is to be written into, directly or by a later scatter that is the only reader of this one."""
    while out not in fusion.aliases:
        uses = [use for use in out.uses() if use in fusion.tensor_exprs()]
        if out.is_fusion_output or len(uses) != 1 or not isinstance(uses[0], ScatterOp) or uses[0].inputs[0] is not out or uses[0].inputs.count(out) > 1:
            return None
        (out,) = uses[0].tensor_outputs
    return None if out in fusion.reuses else fusion.aliases[out]  # type: ignore[return-value]


def _with_leading_nans(fusion: Fusion, base: TensorView, kind: str) -> TensorView:
    """Give NaNs the sign with which they come first in comparisons of bits, as `scatter_max` and `scatter_min` of the device library make them."""
    if isinstance(base.definition(), FullOp):
        return base
    return pointwise(fusion, "nan_without_sign" if kind == "max" else "nan_with_sign", base)  # type: ignore[return-value]


def _copy(fusion: Fusion, tensor: TensorView) -> TensorView:
    out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(tensor)], tensor.dtype())
    fusion.register(LoadStoreOp([tensor], [out]))
    return out


def _at_the_index(fusion: Fusion, source: object, index: TensorView, questions: Questions) -> TensorView:
    """Return the value written for each element of the index: the source, a part of it, or a constant."""
    axes = logical_axes(index)
    if isinstance(source, Scalar):
        return full(fusion, [fusion.new_scalar(a.logical_extent, DataType.Int) for a in axes], source, source.dtype())
    assert isinstance(source, TensorView)
    if all(questions.is_same(a.logical_extent, b.logical_extent) for a, b in zip(logical_axes(source), axes)):
        return source
    return leading_part(fusion, source, axes)


def _keep_order(fusion: Fusion, out: TensorView, others: list[TensorView]) -> None:
    """Give tensors the memory order of `out`."""
    allocation = out.domain().allocation
    if allocation is not None:
        places = [logical_axes(out).index(a) for a in allocation if not a.is_reduction()]
        for tensor in others:
            if tensor is not out:
                domain = tensor.domain()
                domain.allocation = [logical_axes(tensor)[p] for p in places]
                domain.contiguity = [None if a.is_broadcast() else True for a in domain.allocation]


__all__ = ["has_scatters", "scatter_in_kernels"]
