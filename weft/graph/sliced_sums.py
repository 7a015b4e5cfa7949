"""Sums of slices beside the sum of the whole tensor: sum(x[:, :1], 0) is sum(x, 0)[:1], where the second is computed anyway.

The gradient of a class token is a sum over samples of the first position, that of positions the same sum of all of them. Read first: `slice_shared_sums`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from ..analysis.plain_copies import copied_value
from ..expr import ZERO
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp, Position
from ..ir.values import PointwiseOp, ReductionOp, TensorView
from ..ops.build import logical_axes
from .made_reductions import release_result

Chain = tuple[Hashable, ...]
"""The ops of one operand that a reduction's operand is computed by, the last one first."""


def slice_shared_sums(fusion: Fusion) -> None:
    """Replace reductions of slices by slices of a reduction that the fusion has, in place.

    Before: no axis is open. After: results keep their names, and the axes that are sliced are none of the reduced ones.
    """
    whole: dict[Hashable, TensorView] = {}
    sliced: list[tuple[ReductionOp, LookupOp, Chain]] = []
    for expr in fusion.tensor_exprs():
        if not isinstance(expr, ReductionOp) or len(expr.inputs) != 1 or expr.tensor_outputs[0].has_root():
            continue
        folded = tuple(d for d, axis in enumerate(expr.tensor_outputs[0].get_logical_domain()) if axis.is_reduction())
        for source, chain in _behind_ops(expr.tensor_inputs[0]):
            whole.setdefault((_kind(expr), source, chain, folded), expr.tensor_outputs[0])
            definition = source.definition()
            if isinstance(definition, LookupOp):
                sliced.append((expr, definition, chain))
    for expr, lookup, chain in sliced:
        places = _places_of_whole(expr, lookup)
        total = None if places is None else whole.get((_kind(expr), copied_value(lookup.source), chain, places))
        if places is not None and total is not None:
            _slice_total(fusion, expr, lookup, total, places)


def _kind(expr: ReductionOp) -> Hashable:
    return expr.attributes["kind"], expr.tensor_outputs[0].dtype()


def _behind_ops(tensor: TensorView) -> Iterator[tuple[TensorView, Chain]]:
    """Yield the tensors from which ops of one operand compute a tensor, itself first, each with these ops."""
    chain: Chain = ()
    while True:
        tensor = copied_value(tensor)  # type: ignore[assignment]
        yield tensor, chain
        definition = tensor.definition()
        if not isinstance(definition, PointwiseOp) or len(definition.inputs) != 1:
            return
        chain = (*chain, (definition.op_name, tensor.dtype()))
        tensor = definition.tensor_inputs[0]


def _places_of_whole(expr: ReductionOp, lookup: LookupOp) -> tuple[int, ...] | None:
    """Return the axes of a slice's source that a reduction of the slice folds; None unless these are whole, and the slice is a block of its source."""
    if lookup.is_masked or len(lookup.inputs) > 1:
        return None
    result = expr.tensor_outputs[0].get_logical_domain()
    folded: list[int] = []
    along: list[int] = []
    for place, axis in enumerate(logical_axes(lookup.source)):
        position = lookup.positions[place]
        if isinstance(position, Along):
            along.append(position.axis)
            if result[position.axis].is_reduction():
                if position.offset is not ZERO or result[position.axis].logical_extent is not axis.logical_extent:
                    return None
                folded.append(place)
    is_block = len(set(along)) == len(along) and all(d in along or axis.is_broadcast() for d, axis in enumerate(result))
    return tuple(folded) if is_block and len(folded) == sum(axis.is_reduction() for axis in result) else None


def _slice_total(fusion: Fusion, expr: ReductionOp, lookup: LookupOp, total: TensorView, folded: tuple[int, ...]) -> None:
    """Make the result of a reduction a slice of `total`, which folds the axes `folded` of the slice's source."""
    kept = [d for d, axis in enumerate(expr.tensor_outputs[0].get_logical_domain()) if not axis.is_reduction()]
    out = release_result(fusion, expr)
    positions: list[Position] = []
    for place, position in enumerate(lookup.positions):
        if place not in folded:
            positions.append(Along(kept.index(position.axis), position.offset) if isinstance(position, Along) else position)
    fusion.register(LookupOp([total], [out], op="slice", positions=tuple(positions), is_masked=False))


__all__ = ["slice_shared_sums"]
