"""Steps of passes that compute the result of a reduction in another way: a new reduction, and the old result without its reduced axes.

Owns no pass. Read first: `reduce_like`, `release_result`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dtypes import DataType
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, ReductionOp, TensorDomain, TensorView, Val, no_reductions
from ..ops.build import logical_axes, pointwise


def reduce_like(fusion: Fusion, expr: ReductionOp, source: TensorView, is_folded: Iterable[bool], dtype: DataType) -> TensorView:
    """Return a new reduction of `source` with the monoid of `expr`, over the axes that `is_folded` marks."""
    axes = [fusion.copy_axis(a, IterType.reduction if folded else None) for a, folded in zip(logical_axes(source), is_folded, strict=True)]
    result = fusion.new_tensor(axes, dtype)
    fusion.register(ReductionOp([source], [result], **expr.attributes))
    return result


def release_result(fusion: Fusion, expr: ReductionOp) -> TensorView:
    """Remove a reduction; return its result, which has only the axes that it kept, and waits for another definition."""
    out = expr.tensor_outputs[0]
    fusion.remove(expr)
    keep_axes(out, no_reductions(out.get_logical_domain()))
    return out


def keep_axes(tensor: TensorView, axes: list[IterDomain]) -> None:
    """Keep only these axes of a tensor, in its memory order."""
    domain = tensor.domain()
    allocation = None if domain.allocation is None else [a for a in domain.allocation if a in axes]
    tensor._domain = TensorDomain(None, axes, [None if a.is_broadcast() else True for a in (allocation or axes)], allocation)


def multiplied(fusion: Fusion, factors: Sequence[Val]) -> Val:
    """Return the product of values, from the first to the last."""
    product = factors[0]
    for more in factors[1:]:
        product = pointwise(fusion, "mul", product, more)
    return product
