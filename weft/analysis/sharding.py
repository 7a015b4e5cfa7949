"""Which axes of a definition can be cut into shards that know nothing of each other.

Owns the rule: along such an axis every element of a result depends on the same place of the inputs only. Read first: `shardable_axes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..expr import variables
from ..ir.block_ops import BlockFoldOp, BlockSampleOp
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp, ScanOp, position_syms
from ..ir.values import Expr, FullOp, IotaOp, IterDomain, RandomOp, Scalar, TensorView, no_reductions
from .axes import UnionFind, pairwise


@dataclass(frozen=True)
class ShardableAxis:
    """One axis: its dimension in each input tensor, None if it has none (the value is the same for all shards), and in each returned output."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


def shardable_axes(fusion: Fusion) -> list[ShardableAxis]:
    """Return the axes along which `fusion`, as defined, can be computed shard by shard; all outputs have each of them. Excluded: axes that are reduced,
    scanned, reshaped, sliced, concatenated or looked up in; axes whose position or size is used as a value; axes of ops that torch runs.
    """
    exprs = fusion.exprs()
    if any(isinstance(e, (BlockFoldOp, BlockSampleOp, RandomOp)) for e in exprs):
        return []
    same = UnionFind()
    for expr in exprs:
        for source, target in _pairs(expr):
            same.union(source, target)
    bad = {same.find(axis) for expr in exprs for axis in _tied(expr, same)} | _whose_size_is_a_value(fusion, exprs, same)
    inputs = fusion.tensor_inputs()
    outputs = [v for v in fusion.outputs() if v not in fusion.hidden_outputs]
    candidates = dict.fromkeys(same.find(axis) for v in inputs for axis in _axes(v))
    found = []
    for candidate in candidates:
        at_inputs, at_outputs = (tuple(_dim(v, candidate, same) for v in values) for values in (inputs, outputs))
        if candidate not in bad and None not in at_outputs:
            found.append(ShardableAxis(at_inputs, at_outputs))  # type: ignore[arg-type]
    return found


def _axes(tensor: TensorView) -> list[IterDomain]:
    """Return the non-broadcast axes."""
    return [axis for axis in no_reductions(tensor.get_logical_domain()) if not axis.is_broadcast()]


def _dim(value: object, candidate: IterDomain, same: UnionFind) -> int | None:
    if not isinstance(value, TensorView):
        return None
    for dim, axis in enumerate(no_reductions(value.get_logical_domain())):
        if not axis.is_broadcast() and same.find(axis) is candidate:
            return dim
    return None


def _pairs(expr: Expr) -> Iterator[tuple[IterDomain, IterDomain]]:
    """Yield the pairs of axes that are the same; a lookup at its own position keeps the axis."""
    for consumer in expr.tensor_outputs:
        for producer in expr.tensor_inputs:
            yield from pairwise(producer, consumer, expr)
        if isinstance(expr, LookupOp):
            targets = consumer.get_maybe_root_domain()
            for axis, place in zip(no_reductions(expr.source.get_logical_domain()), expr.positions):
                is_own = isinstance(place, Along) and place.offset.is_const and not place.offset.value.real
                if is_own and axis.logical_extent == targets[place.axis].logical_extent:  # type: ignore[union-attr]
                    yield axis, targets[place.axis]  # type: ignore[union-attr]


def _tied(expr: Expr, same: UnionFind) -> Iterator[IterDomain]:
    """Yield the axes along which an expression does not work element by element."""
    kept = {same.find(axis) for out in expr.tensor_outputs for axis in _axes(out)}
    for source in expr.tensor_inputs:
        yield from (axis for axis in _axes(source) if same.find(axis) not in kept)
    for out in expr.tensor_outputs:
        yield from (axis for axis in out.get_logical_domain() if axis.is_reduction())
        if isinstance(expr, IotaOp):
            yield from _axes(out)
    if isinstance(expr, ScanOp):
        yield expr.tensor_outputs[0].get_logical_domain()[expr.attributes["dim"]]


def _whose_size_is_a_value(fusion: Fusion, exprs: list[Expr], same: UnionFind) -> set[IterDomain]:
    """Return the axes whose size is used as a value, as in a mean, or that a position depends on."""
    used = {v for expr in exprs if not isinstance(expr, FullOp) for s in expr.inputs if isinstance(s, Scalar) for v in variables(s.sym)}
    used |= {v for expr in exprs for sym in position_syms(expr) for v in variables(sym)}
    used |= {v for value in fusion.outputs() if isinstance(value, Scalar) for v in variables(value.sym)}
    tensors = fusion.tensor_inputs()
    return {same.find(axis) for t in tensors for axis in _axes(t) if used & set(variables(axis.logical_extent))}
