"""What a kernel reads from memory: inputs at the loops' own positions, and through lookups at others.

Owns which loads a fusion has and along which loops a lookup walks through memory. A lookup's source is read where it lies; its axes are no loops. The result
of a lookup stands for the load: it has the loops, the type and the number of elements that are read.
Read first: `loads`, `lookup_run`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..expr import ZERO, Sym, add, evaluate_int, proves_le
from ..ir.fusion import Fusion
from ..ir.block_ops import BlockFoldOp, BlockSampleOp
from ..ir.graph_ops import Along, At, CatOp, LookupOp, ScatterStoreOp
from ..ir.values import IterDomain, TensorView, no_reductions


def lookup_of(tensor: TensorView) -> LookupOp | None:
    """Return the lookup that makes `tensor`, or None."""
    definition = tensor.definition()
    return definition if isinstance(definition, LookupOp) else None


def is_reading(tensor: TensorView) -> bool:
    """Tell whether `tensor` is an input that is read once more, at its own positions, so that another axis has its loop (`weft.graph.rows_of_two_axes`)."""
    lookup = lookup_of(tensor)
    return lookup is not None and "reading" in lookup.attributes


def is_part(offset: Sym, extent: Sym, whole: Sym) -> bool:
    """True if it is known that so many elements from an offset on are inside of an axis."""
    return proves_le(ZERO, offset) and proves_le(add(offset, extent), whole)


def part_inside(lookup: LookupOp, env: Mapping[Sym, int]) -> float:
    """Return the fraction of the elements of a lookup's result whose positions along its own axes are inside of the source."""
    if not lookup.is_masked:
        return 1.0
    axes, part = no_reductions(lookup.outputs[0].get_logical_domain()), 1.0  # type: ignore[attr-defined]
    for own, place in zip(no_reductions(lookup.source.get_logical_domain()), lookup.positions):
        if isinstance(place, Along):
            count, size, begin = (evaluate_int(n, env) for n in (axes[place.axis].sym, own.sym, place.offset))
            part *= max(0, min(size, begin + count) - max(0, begin)) / max(1, count)
    return part


def is_resized(fusion: Fusion) -> bool:
    """Tell whether a fusion has a slice, a pad or a cat, or the lookups that one became."""
    return any(isinstance(e, (CatOp, LookupOp)) and e.op_name in ("slice", "pad", "cat") for e in fusion.tensor_exprs())


def looked_up_only(fusion: Fusion) -> set[TensorView]:
    """Return the inputs that are read only by lookups, or to find groups of rows."""
    exprs = fusion.tensor_exprs()
    sources = {t for e in exprs for t in e.read_whole}
    return sources - {t for e in exprs for t in e.read_by_loops} - set(fusion.tensor_outputs())


def loads(fusion: Fusion) -> list[TensorView]:
    """Return the inputs, without those that only lookups read, and the results of lookups."""
    hidden = looked_up_only(fusion)
    inputs = [v for v in fusion.tensor_inputs() if v not in hidden]
    return inputs + [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, LookupOp)]  # type: ignore[misc]


def in_memory(tensor: TensorView) -> TensorView:
    """Return the tensor in memory behind a load or a store: the source of a lookup, what a scatter writes to, else the tensor itself."""
    definition = tensor.definition()
    if isinstance(definition, ScatterStoreOp):
        return definition.memory
    return definition.source if isinstance(definition, LookupOp) else tensor


def elements_of(tensor: TensorView, env: Mapping[Sym, int]) -> int:
    """Return how many elements a tensor has in memory."""
    return math.prod(evaluate_int(axis.sym, env) for axis in no_reductions(tensor.get_logical_domain()) if not axis.is_broadcast())


def bad_source(fusion: Fusion) -> str:
    """Return why a lookup cannot be in a kernel, "" if all can: the source must be an input. Also why one element per block cannot be taken."""
    if reason := bad_sample(fusion):
        return reason
    for expr in fusion.tensor_exprs():
        for source in expr.read_whole:
            if not source.is_fusion_input:
                return f"{expr.outputs[0]} reads {source} at computed positions, but that tensor is not in memory before the kernel runs"
    return ""


def bad_sample(fusion: Fusion) -> str:
    """Return why one element per block cannot be taken in a kernel, "" if it can: it must be stored, and blocks must not be reshaped in the same kernel."""
    exprs = fusion.tensor_exprs()
    samples = [e for e in exprs if isinstance(e, BlockSampleOp)]
    if not samples:
        return ""
    of_blocks: set[TensorView] = set()
    for expr in exprs:
        if isinstance(expr, BlockFoldOp) or any(t in of_blocks for t in expr.tensor_inputs):
            if not isinstance(expr, BlockSampleOp) and any(_is_reshaped(t) for t in expr.tensor_outputs):
                return f"{expr.outputs[0]} reshapes blocks, of each of which {samples[0].outputs[0]} takes one element"
            of_blocks.update(expr.tensor_outputs)
    for sample in samples:
        if sample.outputs[0].uses():
            return f"{sample.outputs[0]} has one element per block, but another expression reads it, too"
    return ""


def _is_reshaped(tensor: TensorView) -> bool:
    """True if axes are split or merged; a permute only reorders them."""
    return tensor.has_root() and any(axis.definition() is not None for axis in tensor.get_logical_domain())


@dataclass(frozen=True)
class Piece:
    """Neighbours in memory along one loop: `extents` must all be divisible by a vector that stays within them and is aligned.

    axis: the result's axis. is_whole: the piece is the whole axis of the source, so that the next outer axis may follow it without a gap.
    """

    axis: IterDomain
    extents: tuple[Sym, ...]
    is_whole: bool


def memory_axes(lookup: LookupOp) -> list[tuple[IterDomain, object, bool]]:
    """Return (axis of the source, its position, whether it is contiguous), innermost in memory first, without axes of stride 0."""
    domain = lookup.source.domain()
    place = dict(zip(no_reductions(domain.logical), lookup.positions))
    pairs = list(zip(domain.maybe_allocation, domain.contiguity))
    return [(axis, place.get(axis), bool(contiguous)) for axis, contiguous in reversed(pairs) if axis in place and not axis.is_broadcast()]


def lookup_run(lookup: LookupOp) -> list[Piece]:
    """Return the axes of the result along which its elements are neighbours in the source, innermost first."""
    result = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
    out: list[Piece] = []
    for axis, position, contiguous in memory_axes(lookup):
        if not contiguous or not isinstance(position, Along) or result[position.axis].is_broadcast():
            break
        mine = result[position.axis]
        if varying_over(lookup, [mine]):  # neighbours are read from other rows
            break
        is_whole = position.offset is ZERO and mine.sym is axis.sym
        out.append(Piece(mine, (mine.sym,) if is_whole else (mine.sym, axis.sym, position.offset), is_whole))
        if not is_whole:
            break
    return out


def memory_order(lookup: LookupOp) -> list[IterDomain]:
    """Return the axes of the result in the memory order of the source, outermost first. Axes of index tensors are at the place of the first position that they
    determine.
    """
    result = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
    along = {p.axis for p in lookup.positions if isinstance(p, Along)}
    others = [a for d, a in enumerate(result) if d not in along]
    out: list[IterDomain] = []
    for axis, position, _ in reversed(memory_axes(lookup)):
        if isinstance(position, Along):
            out.append(result[position.axis])
        elif isinstance(position, At):
            out += others
            others = []
    missing = [a for a in result if a not in out]
    return list(dict.fromkeys([*missing, *out]))


def varying_over(lookup: LookupOp, axes: Iterable[IterDomain]) -> bool:
    """True if an index tensor depends on one of the result's axes `axes`, so that neighbours along it may be anywhere."""
    result = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
    wanted = {d for d, a in enumerate(result) if a in set(axes)}
    used = {n for p in lookup.positions if isinstance(p, At) for n in p.operands} - lookup.whole_places
    tensors = [t for n, t in enumerate(lookup.inputs) if n in used]
    return any(d in wanted and not a.is_broadcast() for t in tensors for d, a in enumerate(no_reductions(t.get_logical_domain())))  # type: ignore[attr-defined]


__all__ = [
    "Piece", "bad_source", "in_memory", "loads", "looked_up_only", "lookup_of", "lookup_run", "memory_axes", "memory_order", "varying_over",
]  # fmt: skip
