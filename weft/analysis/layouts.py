"""Memory formats that outputs take over from inputs: channels-last in, channels-last out.

Owns the inference for outputs without a requested order. Read first: `inferred_order`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.block_ops import BlockFoldOp
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, LookupOp, TorchOp
from ..ir.values import IterDomain, LoadStoreOp, TensorView, Val, no_reductions
from .axes import AxisMaps, UnionFind


def _is_real(axis: IterDomain) -> bool:
    return not axis.is_broadcast() and not axis.is_reduction()


def _is_row_major(tensor: TensorView) -> bool:
    domain = tensor.domain()
    order = [a for a in domain.maybe_allocation if _is_real(a)]
    return order == [a for a in domain.logical if _is_real(a)]


def _is_permuted(tensor: TensorView) -> bool:
    domain = tensor.domain()
    return domain.root is not None and len(domain.root) == len(domain.logical) and isinstance(tensor.definition(), LoadStoreOp)


def keep_memory_formats(fusion: Fusion, outputs: Iterable[Val], *, follows_rows: bool = False) -> bool:
    """Give each of `outputs` the allocation order that it inherits from an input, in place; see `memory_formats`. Return whether any has one."""
    found = memory_formats(fusion, outputs, follows_rows=follows_rows)
    for output, order in found.items():
        domain = output.domain()
        domain.allocation = [a for a in domain.logical if a.is_reduction()] + order
        domain.contiguity = [None if not _is_real(a) else True for a in domain.allocation]
    return bool(found)


def memory_formats(fusion: Fusion, outputs: Iterable[Val], *, follows_rows: bool = False) -> dict[TensorView, list[IterDomain]]:
    """Return output -> order of axes, slowest first, for outputs that inherit it from an input which is not row-major. Not for outputs with a requested order,
    outputs written into inputs, packed outputs, and results of torch ops; nor for any output of a fusion with reductions over blocks of neighbours, whose
    readers expect rows. follows_rows: also of inputs that are row-major, whose axes the definition permutes, and of those that are read in parts.
    """
    inputs = fusion.tensor_inputs()
    is_plain = all(map(_is_row_major, inputs)) and not (follows_rows and any(map(_is_permuted, fusion.tensors())))
    if is_plain or any(isinstance(e, BlockFoldOp) for e in fusion.tensor_exprs()):
        return {}
    maps = FollowedAxes(fusion, follows_parts=follows_rows)
    found: dict[TensorView, list[IterDomain]] = {}
    for output in outputs:
        if not isinstance(output, TensorView) or output.domain().allocation is not None or output in fusion.aliases or output in inputs:
            continue
        if isinstance(output.definition(), TorchOp) or output.dtype().bits < 8:
            continue
        order = inferred_order(maps, output, _inputs_behind(output), follows_rows=follows_rows)
        if order is not None:
            found[output] = order
    return found


def _inputs_behind(output: TensorView) -> list[TensorView]:
    """Return the input tensors whose values `output` depends on; not index tensors, whose layout does not matter."""
    found: dict[TensorView, None] = {}
    seen: set[Val] = {output}
    stack: list[Val] = [output]
    while stack:
        value = stack.pop()
        definition = value.definition()
        if definition is None and isinstance(value, TensorView):
            found[value] = None
        indices = {n for p in definition.positions if isinstance(p, At) for n in p.operands} if isinstance(definition, LookupOp) else ()
        for number, source in enumerate(definition.inputs if definition is not None else ()):
            if source not in seen and number not in indices:
                seen.add(source)
                stack.append(source)
    return list(found)


class FollowedAxes:
    """Classes of corresponding axes from inputs to outputs: equal axes, and those that a slice, pad or lookup does not change. follows_parts: and those of
    which it takes a part, or elements at positions along one axis."""

    def __init__(self, fusion: Fusion, *, follows_parts: bool = False) -> None:
        self._maps, self._sets = AxisMaps(fusion), UnionFind()
        for expr in fusion.tensor_exprs():
            if isinstance(expr, LookupOp):
                for axis, position in zip(no_reductions(expr.source.get_logical_domain()), _positions(expr, follows_parts)):
                    is_same = position is not None and (follows_parts or axis.logical_extent == position.logical_extent)
                    if position is not None and is_same and axis.is_broadcast() == position.is_broadcast():
                        self._sets.union(self._maps.exact(axis), self._maps.exact(position))

    def of(self, axis: IterDomain) -> IterDomain:
        """Return the representative of the class of `axis`."""
        return self._sets.find(self._maps.exact(axis))


def _positions(expr: LookupOp, follows_parts: bool) -> list[IterDomain | None]:
    """Return for each axis of the source the axis of the result with the same positions, or None. follows_parts: with any positions along that axis alone."""
    axes = no_reductions(expr.tensor_outputs[0].get_logical_domain())
    found: list[IterDomain | None] = []
    for place in expr.positions:
        varying = _varying(expr.inputs[place.operand]) if isinstance(place, At) else []
        if isinstance(place, Along) and (follows_parts or place.offset.is_const and place.offset.value == 0):
            found.append(axes[place.axis])
        else:
            found.append(axes[varying[0]] if follows_parts and len(varying) == 1 else None)
    return found


def _varying(index: Val) -> list[int]:
    """Return the axes along which an index tensor varies."""
    assert isinstance(index, TensorView)
    return [n for n, axis in enumerate(no_reductions(index.get_logical_domain())) if _is_real(axis)]


def inferred_order(maps: FollowedAxes, output: TensorView, inputs: list[TensorView], *, follows_rows: bool = False) -> list[IterDomain] | None:
    """Return the axes of `output` from the slowest in memory to the fastest, or None for row-major. follows_rows: as in `memory_formats`.

    The input with most real axes decides; several such must agree. Its axes are followed from the fastest on as long as the output has them; the output's
    other axes come before, in logical order.
    """
    count = max((sum(map(_is_real, t.get_logical_domain())) for t in inputs), default=0)
    leading = [t for t in inputs if sum(map(_is_real, t.get_logical_domain())) == count]
    if not count or _is_row_major(leading[0]) and not follows_rows:
        return None
    orders = [_mapped(maps, t, output) for t in leading]
    for order in orders[1:]:
        common = [a for a in order if a in orders[0]]
        if common != [a for a in orders[0] if a in order]:
            return None
    order = orders[0]
    logical = [a for a in output.get_logical_domain() if not a.is_reduction()]
    result = [a for a in logical if a not in order] + order
    return None if result == logical else result


def _mapped(maps: FollowedAxes, source: TensorView, output: TensorView) -> list[IterDomain]:
    """Return the output's axes that are axes of `source`, slowest first, up to the first real axis of `source` that the output lacks."""
    places = {maps.of(a): a for a in output.get_logical_domain() if _is_real(a)}
    found: list[IterDomain] = []
    for axis in reversed(source.get_allocation_domain()):
        if not _is_real(axis):
            continue
        place = places.get(maps.of(axis))
        if place is None or place in found:  # a tensor together with its own transpose: two of its axes are the same
            break
        found.append(place)
    return found[::-1]
