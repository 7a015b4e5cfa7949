"""What a normalization keeps on chip: tensors that are needed before and after a reduction over their own axes.

Owns the passes of a fusion over the reduced loops, the tensors kept between them, their projection to inputs, and their size in bits.

A pass is one walk over the reduced loops. A reduction belongs to the first pass in which its operand can be computed; what depends on its result belongs
to a later one. A tensor is computed in the first pass that needs it, and is kept when an expression of a later pass reads it:

    softmax:  pass 0: x, max(x)     pass 1: exp(x - max), sum       pass 2: exp / sum
              keeps x from 0 to 1, and exp from 1 to 2; projected to its input: x from 0 to 2, exp is computed twice

Two simplifications that cost nothing: a kept tensor that is a widening cast is kept before the cast, and inputs without a loop outside the reduction
(weights) are not kept but read again, from L2.
Read first: `persistent_buffers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..ir.fusion import Fusion
from ..ir.values import Expr, PointwiseOp, TensorView
from .lookups import lookup_of
from .loop_axes import LoopAxes, Obstacle
from .op_cost import OpCost, cost_of
from .precision import wide_tensors
from .reduction_shape import ReductionShape


MOST_TIMES = 8
"""Projection is given up if ops would run more often than this on average: of 100 normalizations in a row the last would recompute all others."""

NO_INPUT = "no input has the kept axes"
"""Obstacle to projection: along the reduced axes, kept tensors depend on nothing in memory, but on positions and numbers only."""

_Kept = tuple[TensorView, int, int]
"""A tensor, and the first and the last pass that it is kept for."""


@dataclass(frozen=True)
class KeptTensor:
    """`tensor` stays on chip from `first_pass` until `last_pass`; it depends on the reduced loops `classes`."""

    tensor: TensorView
    first_pass: int
    last_pass: int
    classes: frozenset[int]

    def row_bits(self, extents: Sequence[int]) -> int:
        """Bits for one index of the loops that are not reduced."""
        return math.prod(extents[c] for c in self.classes) * self.tensor.dtype().bits


@dataclass(frozen=True)
class PersistentBuffers:
    """What is kept between the passes over the reduced loops.

    passes: number of passes. first_pass: the pass that first needs each tensor. buffers: the tensors kept without projection. projected: inputs that are kept
    instead, with everything else recomputed; None if that is impossible (`projection_obstacle` says why). recomputed: cost of recomputing what projection does
    not keep.
    """

    passes: int
    first_pass: Mapping[TensorView, int]
    buffers: tuple[KeptTensor, ...]
    projected: tuple[KeptTensor, ...] | None
    projection_obstacle: str
    recomputed: OpCost

    def live_bits(self, extents: Sequence[int], *, is_projected: bool) -> int:
        """Bits per row kept at the worst boundary between two passes."""
        kept = self.projected if is_projected else self.buffers
        return live_bits(kept or (), self.passes, extents)


def live_bits(kept: Iterable[KeptTensor], passes: int, extents: Sequence[int]) -> int:
    """Return the largest sum of `row_bits` of what is kept across one boundary between passes."""
    at_boundary = [0] * max(1, passes)
    for buffer in kept:
        bits = buffer.row_bits(extents)
        for boundary in range(buffer.first_pass, buffer.last_pass):
            at_boundary[boundary] += bits
    return max(at_boundary)


def persistent_buffers(fusion: Fusion, axes: LoopAxes, shape: ReductionShape, of_weights: frozenset[int] = frozenset()) -> PersistentBuffers | Obstacle:
    """Find what must be kept between the passes over the reduced loops of `shape`. of_weights: loops that weights may have beside the reduced ones, because the
    rows of a block do not differ in them.

    Errors: an Obstacle if an axis that a reduction's result is broadcast to is not one of the reduced axes.
    """
    reduced = shape.reduced
    members = set(map(id, shape.reductions))
    exprs = fusion.tensor_exprs()
    available = _passes_of_results(exprs, members)
    for expr in exprs:
        for tensor in expr.outputs:
            if available[tensor] > 0 and not axes.stored(tensor) <= axes.concrete(shape.reference):  # type: ignore[arg-type, index]
                return Obstacle(f"{tensor} is computed from a reduction and has an axis that the reduction did not have")
    first, last = _passes_of_uses(fusion, exprs, members, available)
    passes = 1 + max((at for tensor, at in last.items() if axes.stored(tensor) & reduced), default=0)

    def kept(tensors: Iterable[_Kept]) -> tuple[KeptTensor, ...]:
        out: dict[TensorView, KeptTensor] = {}
        for tensor, start, end in tensors:
            before = out.get(tensor)
            if before is not None:
                start, end = min(start, before.first_pass), max(end, before.last_pass)
            out[tensor] = KeptTensor(tensor, start, end, axes.stored(tensor) & reduced)
        return tuple(out.values())

    found: list[_Kept] = []
    for tensor in axes.tensors:
        if tensor not in first or not axes.stored(tensor) & reduced:
            continue
        uses = [u for u in tensor.uses() if id(u) not in members and tensor in u.read_by_loops]
        readers = [first[o] for u in uses for o in u.outputs if o in first]
        end = max(readers, default=first[tensor])
        if end > first[tensor]:
            found.append((tensor, first[tensor], end))
    narrow = [(_before_widening(tensor), start, end) for tensor, start, end in found]
    has_rows = len(axes.concrete(shape.reference)) > len(reduced)
    is_weight = {t: t.is_fusion_input and not axes.stored(t) - reduced - of_weights and has_rows for t, _, _ in narrow}
    buffers = kept((t, s, e) for t, s, e in narrow if not is_weight[t])
    projected, obstacle, recomputed = _project(found, axes, reduced, members, kept)
    return PersistentBuffers(passes, first, buffers, projected, obstacle, recomputed)


def _passes_of_results(exprs: Iterable[Expr], members: set[int]) -> Mapping[TensorView, int]:
    """The first pass in which each tensor can be computed: the length of the chain of reductions that it depends on."""
    out: dict[TensorView, int] = {}
    for expr in exprs:
        start = max((out.get(t, 0) for t in expr.tensor_inputs), default=0) + (id(expr) in members)
        out.update(dict.fromkeys(expr.tensor_outputs, start))
    return out


def _passes_of_uses(
    fusion: Fusion, exprs: Sequence[Expr], members: set[int], available: Mapping[TensorView, int]
) -> tuple[dict[TensorView, int], dict[TensorView, int]]:  # fmt: skip
    """First and last pass that need each tensor, from the outputs backwards."""
    first: dict[TensorView, int] = {}
    last: dict[TensorView, int] = {}

    def need(tensor: TensorView, at: int) -> None:
        first[tensor] = min(first.get(tensor, at), at)
        last[tensor] = max(last.get(tensor, at), at)

    for value in fusion.outputs():
        if isinstance(value, TensorView):
            need(value, available.get(value, 0))
    for expr in reversed(exprs):
        needed = [t for t in expr.outputs if t in first]
        if not needed:
            continue
        is_member = id(expr) in members
        for tensor in expr.read_by_loops:
            if is_member:
                need(tensor, available.get(tensor, 0))
            else:
                for out in needed:
                    need(tensor, first[out])
                    need(tensor, last[out])
    return first, last


def _before_widening(tensor: TensorView) -> TensorView:
    """Follow casts to a type of at least as many bits back to the narrowest tensor with the same values."""
    while True:
        definition = tensor.definition()
        if not isinstance(definition, PointwiseOp) or definition.op_name != "cast":
            return tensor
        source = definition.tensor_inputs[0]
        if not (source.dtype().is_float and tensor.dtype().is_float) or source.dtype().bits >= tensor.dtype().bits:
            return tensor
        tensor = source


def _lacking(found: Sequence[_Kept], inputs: Sequence[_Kept], axes: LoopAxes, reduced: frozenset[int]) -> TensorView | None:
    """Return a kept tensor with a reduced axis that none of `inputs` depends on: after merging, its elements would be in several threads."""
    covered = frozenset().union(*(axes.stored(tensor) for tensor, _, _ in inputs))
    return next((tensor for tensor, _, _ in found if axes.stored(tensor) & reduced - covered), None)


def _project(
    found: Sequence[_Kept], axes: LoopAxes, reduced: frozenset[int], members: set[int], kept: Callable[[Iterable[_Kept]], tuple[KeptTensor, ...]]
) -> tuple[tuple[KeptTensor, ...] | None, str, OpCost]:  # fmt: skip
    """Replace every kept tensor by the inputs that it is computed from; the search stops at reduction results, which are available anyway."""
    inputs: list[_Kept] = []
    recomputed: dict[int, Expr] = {}
    times = 0
    obstacle = ""
    has_outer_loops = any(axes.stored(t) - reduced for t, _, _ in found)
    for target, _, end in found:
        stack, seen = [target], {target}
        while stack:
            tensor = stack.pop()
            if not axes.stored(tensor) & reduced:
                continue  # one value per row: a reduction's result, or computed from such
            definition = tensor.definition()
            if definition is None or lookup_of(tensor) is not None:
                if axes.stored(tensor) - reduced or not has_outer_loops:
                    inputs.append((tensor, 0, end))
                continue
            times += 1
            if times > MOST_TIMES * max(64, len(recomputed)):
                return None, f"every kept tensor would be recomputed from the inputs, each op {MOST_TIMES} times and more", cost_of((), set())
            recomputed[id(definition)] = definition
            for source in definition.tensor_inputs:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
    cost = cost_of(recomputed.values(), wide_tensors(axes.fusion))
    if cost.has_rng:
        obstacle = "a kept tensor depends on random numbers"
    elif found and not inputs:
        obstacle = NO_INPUT
    elif (lacking := _lacking(found, inputs, axes, reduced)) is not None:
        obstacle = f"no input has an axis of {lacking}, which is expanded"
    return (None if obstacle else kept(inputs)), obstacle, cost
